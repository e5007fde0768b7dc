"""The replay of a run that was put together (tape/compose.py): thousands of steps, of which only the course is kept.

The same allocator and the same figures as replay.py. What every request was given is not kept, since a run may
have tens of millions of them: what was alive where most was allocated is asked for in a second run up to there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import AtPeak, Replay, Replays, StretchReplay, take
from tunecast.records import NamedTuple
from tunecast.tape.compose import Composed
from tunecast.tape.op import Phase, Role
from tunecast.tape.program import FREE


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

    def at_peak(self, run: Replay, capacity_bytes: int | None) -> AtPeak:
        """Where `allocated_bytes` was first reached after loading."""
        trained = [number for number, course in enumerate(run.courses) if course.position >= 0]
        trained = trained or list(range(len(run.courses)))
        highest = max(trained, key=lambda number: run.courses[number].peak_bytes)
        return self._moments(run, [highest], capacity_bytes)[0]

    def phase_peaks(self, run: Replay, capacity_bytes: int | None) -> tuple[AtPeak, ...]:
        """Each phase's highest moment over all steps, the first of equals, in the order the phases first began."""
        highest: dict[Phase, int] = {}
        for number, course in enumerate(run.courses):
            phase = course.stretch.begin.phase
            if course.stretch.start == course.stretch.end:
                continue
            if phase not in highest or course.peak_bytes > run.courses[highest[phase]].peak_bytes:
                highest[phase] = number
        found = dict(
            zip(sorted(highest.values()), self._moments(run, sorted(highest.values()), capacity_bytes), strict=True)
        )
        return tuple(found[number] for number in highest.values())

    def _moments(self, run: Replay, wanted: Sequence[int], capacity_bytes: int | None) -> list[AtPeak]:
        taken = take(self.rows, self.settings, capacity_bytes, wanted)
        found = []
        for number, (alive, given) in zip(wanted, taken.moments, strict=True):
            held = dict(alive) if isinstance(alive, dict) else {name: size for name, size in enumerate(alive) if size}
            course = run.courses[number]
            self._play_to(number, held, course, given)
            by_role = dict.fromkeys(Role, 0)
            for block, nbytes in held.items():
                by_role[self.rows.roles[block]] += nbytes
            begin = course.stretch.begin
            step = begin.step if course.position < 0 else course.position
            found.append(AtPeak(course.peak_bytes, begin.phase, max(0, step), by_role))
        return found

    def _play_to(self, number: int, held: dict[int, int], course: StretchReplay, given: Sequence[int]) -> None:
        """`held` becomes what is alive where the course first holds most."""
        served, now = iter(given), course.start_bytes
        first = course.stretch.start
        for row, size in enumerate(self.rows.sizes_of(number), start=first):
            if now == course.peak_bytes:
                return
            block = self.rows.blocks[row]
            if size >= 0:
                held[block] = nbytes = next(served)
                now += nbytes
            elif size == FREE:
                now -= held.pop(block, 0)


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
