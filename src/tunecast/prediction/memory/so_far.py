"""What `torch.cuda` answers inside a traced script: the allocator's replay as far as the script has come.

The traced process makes it by its name (tape/trace/meter.py), with what `allocator_request` says of the card.
"""

from __future__ import annotations

import dataclasses

from tunecast.prediction.memory.allocator import (
    AllocatorSettings,
    CachingAllocator,
    OutOfMemory,
    takes_oldest_segment_first,
)
from tunecast.prediction.memory.replay import take
from tunecast.records import replace
from tunecast.tape.card import CardBytes
from tunecast.tape.op import Tape
from tunecast.tape.trace.request import AllocatorRequest
from tunecast.tape.whole_run import whole_run


def allocator_request(settings: AllocatorSettings, context_bytes: int, capacity_bytes: int) -> AllocatorRequest:
    """Which torch it is the traced process knows."""
    return AllocatorRequest(__name__, dataclasses.asdict(settings), context_bytes, capacity_bytes)


class MemorySoFar:
    no_room: type[Exception] = OutOfMemory

    def __init__(self, request: AllocatorRequest, torch_version: str) -> None:
        settings = AllocatorSettings(**request.settings)
        self._settings = replace(
            settings,
            roundup_power2_divisions=tuple(settings.roundup_power2_divisions),  # a list, as it was written to JSON
            oldest_segment_first=takes_oldest_segment_first(torch_version),
        )
        self.context_bytes = request.context_bytes
        self._capacity_bytes = request.capacity_bytes

    def take_larger_card(self) -> None:
        """From here on: the script did not fit, and is traced on."""
        self._capacity_bytes = None

    def new_allocator(self) -> CachingAllocator:
        return CachingAllocator(self._settings, self._capacity_bytes)

    def of_run(self, tape: Tape, reset_at: int) -> CardBytes | None:
        """Of a run of which units were skipped, with peaks since the how-manieth event; None where these cannot be put
        together."""
        try:
            run = whole_run(tape, mark=reset_at)
            taken = take(run.rows, self._settings, self._capacity_bytes)
            if taken.died is not None:
                self.take_larger_card()
                taken = take(run.rows, self._settings, None)
        except (ArithmeticError, AssertionError, LookupError, StopIteration, ValueError):
            return None
        since = slice(4 * run.marked_stretch, None)
        return CardBytes(
            taken.allocated_bytes,
            taken.reserved_bytes,
            max([taken.allocated_bytes, *taken.courses[since][1::4]]),
            max([taken.reserved_bytes, *taken.courses[since][2::4]]),
            taken.retries,
        )
