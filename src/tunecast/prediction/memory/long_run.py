"""The replay of a run that was put together (tape/compose.py): thousands of steps, of which only the course is kept.

The same allocator and the same figures as replay.py. What every request was given is not kept, since a run may
have tens of millions of them: what was alive where most was allocated is asked for in a second run up to there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import AtPeak, Replay, Replays, moment_of, take
from tunecast.records import NamedTuple
from tunecast.tape.compose import Composed


class ReplaySpread(NamedTuple):
    """What runs of a job reserve whose order is not known."""

    least_bytes: int
    most_bytes: int
    all_fit: bool

    def around(self, nbytes: int) -> tuple[int, int]:
        """How far below and above what is told they go."""
        return max(0, nbytes - self.least_bytes), max(0, self.most_bytes - nbytes)


class LongReplays(Replays):
    """Of a run that was put together."""

    rows: Composed

    def _moments(self, run: Replay, wanted: Sequence[int], capacity_bytes: int | None) -> list[AtPeak]:
        taken = take(self.rows, self.settings, capacity_bytes, wanted)
        found = []
        for number, (alive, given) in zip(wanted, taken.moments, strict=True):
            held = alive if isinstance(alive, dict) else {name: size for name, size in enumerate(alive) if size}
            found.append(moment_of(self.rows, number, run.courses[number], held, given))
        return found


def one_of(
    orders: Sequence[Composed], known: bool, settings: AllocatorSettings, capacity_bytes: int
) -> tuple[LongReplays, ReplaySpread | None]:
    """Of the ranks whose batches are known, the fullest, or one that does not fit. Of orders that were drawn the middle
    one, and how far the others are from it."""
    every = [LongReplays(rows, settings) for rows in orders]
    if len(every) == 1:
        return every[0], None
    ends = [runs.within(capacity_bytes) for runs in every]
    held = [
        end.reserved_bytes if end.completed else runs.unlimited.reserved_bytes
        for runs, end in zip(every, ends, strict=True)
    ]
    by_need = sorted(range(len(every)), key=lambda at: (not ends[at].completed, held[at]))
    if known:
        return every[by_need[-1]], None
    return every[by_need[len(every) // 2]], ReplaySpread(min(held), max(held), all(end.completed for end in ends))
