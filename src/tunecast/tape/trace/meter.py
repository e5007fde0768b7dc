"""How full a card is while the script runs, as `torch.cuda` and `nvidia-smi` would answer there.

The allocator's model belongs to `prediction`, above this package: whoever asks for the trace names it (`request.py`).
What was traced since the last question is played on it. Once calls were skipped, the run so far is put together as it
is at the end (tape/whole_run.py), within a limit of time; then the last answer is given again, which is told. Without
an allocator, as where a job is traced, the bytes that were asked for are counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from tunecast.records import NamedTuple
from tunecast.tape.card import CardBytes
from tunecast.tape.cards import card_of_stream
from tunecast.tape.op import EmptyCache, Free, Tape, Unit
from tunecast.tape.program import FREE
from tunecast.tape.trace.request import AllocatorRequest

if TYPE_CHECKING:
    from tunecast.tape.trace.ledger import Ledger

MOST_REPLAY_CPU_S = 10.0
"""For all questions after skipped calls together: one takes up to two seconds where a large model was traced."""


class Allocator(Protocol):
    """`CachingAllocator` of prediction/memory/allocator.py."""

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int

    def play(self, blocks: Iterable[int], sizes: Iterable[int], streams: Iterable[int], given: list[int]) -> None: ...
    def empty_cache(self) -> None: ...
    def reset_peaks(self) -> None: ...


class AllocatorReplay(Protocol):
    """`MemorySoFar` of prediction/memory/so_far.py."""

    context_bytes: int
    no_room: type[Exception]
    """What an allocator raises where the card is full."""

    def take_larger_card(self) -> None: ...
    def new_allocator(self) -> Allocator: ...
    def of_run(self, tape: Tape, reset_at: int) -> CardBytes | None: ...


class PlayedRows(NamedTuple):
    """What was asked for and freed, one after the other."""

    blocks: list[int]
    sizes: list[int]
    streams: list[int]


def memory_so_far(request: AllocatorRequest, torch_version: str) -> AllocatorReplay:
    found: AllocatorReplay = import_module(request.module).MemorySoFar(request, torch_version)
    return found


class MemoryMeter:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.units: Callable[[], Sequence[Unit]] = tuple
        """Of the run so far (skip.py)."""
        self._so_far: AllocatorReplay | None = None
        self._allocators: dict[int, Allocator] = {}
        self._played = 0
        self._reset_at = 0
        self._last: tuple[tuple[int, int, int], CardBytes] | None = None
        self._spent_s = 0.0

    def replay_by(self, so_far: AllocatorReplay) -> None:
        self._so_far = so_far

    def now(self, card: int) -> CardBytes:
        if self._so_far is None:
            in_use, peak = self._ledger.in_use_bytes[card], self._ledger.peak_bytes[card]
            return CardBytes(in_use, in_use, peak, peak)
        units = self.units()
        if any(not unit.traced for unit in units):
            return self._of_run(self._so_far, units)
        return _bytes_of(self._played_so_far(self._so_far, card))

    def used_bytes(self, card: int) -> int:
        """Of the card, by this process."""
        return self.now(card).reserved_bytes + (0 if self._so_far is None else self._so_far.context_bytes)

    def reset_peaks(self, card: int) -> None:
        self._ledger.peak_bytes[card] = self._ledger.in_use_bytes[card]
        self._reset_at = len(self._ledger._events)
        if self._so_far is not None:
            self._played_so_far(self._so_far, card).reset_peaks()

    def _played_so_far(self, so_far: AllocatorReplay, card: int) -> Allocator:
        try:
            return self._play_on(so_far, card)
        except so_far.no_room:
            so_far.take_larger_card()
            self._allocators, self._played = {}, 0
            return self._play_on(so_far, card)

    def _play_on(self, so_far: AllocatorReplay, card: int) -> Allocator:
        events, blocks = self._ledger._events, self._ledger._blocks
        if len(events) < self._played:  # the card was emptied (`forget_all`)
            self._allocators, self._played = {}, 0
        rows: dict[int, PlayedRows] = {}

        def play() -> None:
            for number, own in rows.items():
                self._allocator(so_far, number).play(own.blocks, own.sizes, own.streams, [])
            rows.clear()

        for event in events[self._played :]:
            if isinstance(event, (int, Free)):
                number = event if isinstance(event, int) else event.block
                block = blocks[number]
                size = max(0, block.nbytes) if isinstance(event, int) else FREE
                own = rows.setdefault(card_of_stream(block.stream), PlayedRows([], [], []))
                own.blocks.append(number)
                own.sizes.append(size)
                own.streams.append(block.stream)
            elif isinstance(event, EmptyCache):
                play()
                for allocator in self._allocators.values():
                    allocator.empty_cache()
        play()
        self._played = len(events)
        return self._allocator(so_far, card)

    def _allocator(self, so_far: AllocatorReplay, card: int) -> Allocator:
        if card not in self._allocators:
            self._allocators[card] = so_far.new_allocator()
        return self._allocators[card]

    def _of_run(self, so_far: AllocatorReplay, units: Sequence[Unit]) -> CardBytes:
        """Calls are skipped on one card only."""
        key = len(self._ledger._events), len(units), self._reset_at
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        found = None
        if self._spent_s < MOST_REPLAY_CPU_S:
            began_s = time.process_time()
            found = so_far.of_run(self._ledger.tape_so_far(units, self._reset_at), self._reset_at)
            self._spent_s += time.process_time() - began_s
        if found is None:
            self._ledger.assumptions[NOT_REPLAYED] += 1
            found = self._last[1] if self._last is not None else _bytes_of(self._played_so_far(so_far, 0))
        self._last = key, found
        return found


def _bytes_of(allocator: Allocator) -> CardBytes:
    return CardBytes(
        allocator.allocated_bytes, allocator.reserved_bytes, allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes, allocator.retries,
    )  # fmt: skip


NOT_REPLAYED = (
    "the script asks how full the card is after calls of its model were skipped; it is told an earlier answer (--steps "
    "all traces every call)"
)
