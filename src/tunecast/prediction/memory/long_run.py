"""The replay of a run that was put together (tape/compose.py): thousands of steps, of which only the course is kept.

The same allocator and the same figures as replay.py. What every request was given is not kept, since a run may
have tens of millions of them: what was alive where most was allocated is asked for in a second run up to there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat

from tunecast.prediction.memory.allocator import AllocatorSettings, CachingAllocator, OutOfMemory
from tunecast.prediction.memory.replay import (
    AtPeak,
    Exhausted,
    PhaseReplay,
    Replay,
    RowsInC,
    StretchReplay,
    card_bytes,
    played_at_once,
)
from tunecast.prediction.native import run as native_run
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


class _Told(NamedTuple):
    """What a run came to."""

    courses: Sequence[int]
    """Of each stretch: allocated at its start, most allocated, most reserved, requests served."""
    retries: int
    refused_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    died: tuple[int, int, int, int] | None
    moments: Sequence[tuple[Sequence[int] | dict[int, int], Sequence[int]]]
    """Of each stretch that was asked about: what was alive when it began, and what its requests were given."""


def rows_in_c(rows: Composed) -> RowsInC:
    return rows.blocks, rows.places, rows.streams, rows.names, rows.rows, rows.renames, rows.table


class LongReplays:
    """One run under one set of settings, and ever other capacities."""

    def __init__(self, rows: Composed, settings: AllocatorSettings) -> None:
        self.rows, self.settings = rows, settings
        self._seen: list[Replay] = []
        self._unlimited: Replay | None = None

    @property
    def unlimited(self) -> Replay:
        if self._unlimited is None:
            self._unlimited = self._replayed(None)
        return self._unlimited

    def within(self, capacity_bytes: int) -> Replay:
        if not self.settings.needs_capacity:
            for run in [self.unlimited, *self._seen]:
                if max(peak.reserved_bytes for peak in run.peaks) <= capacity_bytes < run.same_until_bytes:
                    return run
        return self._replayed(capacity_bytes)

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
        told = self._told(capacity_bytes, wanted)
        found = []
        for number, (alive, given) in zip(wanted, told.moments, strict=True):
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

    def _replayed(self, capacity_bytes: int | None) -> Replay:
        told = self._told(capacity_bytes, None)
        found = _replay(self.rows, told)
        self._seen.append(found)
        return found

    def _told(self, capacity_bytes: int | None, wanted: Sequence[int] | None) -> _Told:
        settings = self.settings
        allocator = CachingAllocator(settings, capacity_bytes)
        if native_run is not None and played_at_once(settings):
            told = native_run(
                *rows_in_c(self.rows), allocator.limit_bytes, settings.oldest_segment_first,
                settings.large_segment_bytes, card_bytes(settings), allocator.physical_bytes, array("q", wanted or ()),
            )  # fmt: skip
            _, courses, retries, refused, allocated, reserved, died, moments = told
            read = [(memoryview(alive).cast("q"), memoryview(given).cast("q")) for alive, given in moments]
            return _Told(memoryview(courses).cast("q"), retries, refused, allocated, reserved, died, read)
        return _played(self.rows, allocator, wanted)


def _played(rows: Composed, allocator: CachingAllocator, wanted: Sequence[int] | None) -> _Told:
    """As the C code plays it."""
    courses, moments = array("q"), []
    held: dict[int, int] = {}
    died = None
    for number, (_, stretch) in enumerate(rows.stretches):
        renames = rows.renames_before(number)
        allocator.rename(renames)
        allocator.reset_peaks()
        start_bytes = allocator.allocated_bytes
        if wanted is not None:
            held.update([(new, held.pop(old, 0)) for old, new in renames])
        alive = dict(held) if wanted and number in wanted else None
        given: list[int] = []
        sizes, first = rows.sizes_of(number), stretch.start
        try:
            for end in [*stretch.empties, stretch.end]:
                streams = rows.streams[first:end] if rows.streams else repeat(0)
                own = slice(first - stretch.start, end - stretch.start)
                allocator.play(rows.blocks[first:end], sizes[own], streams, given)
                if end < stretch.end:
                    allocator.empty_cache()
                first = end + 1
        except OutOfMemory as error:
            died = error.requested_bytes, error.segment_bytes, error.allocated_bytes, error.reserved_bytes
        courses.extend((start_bytes, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes, len(given)))
        if alive is not None:
            moments.append((alive, given))
        if wanted is not None and died is None:
            served = iter(given)
            for block, size in zip(rows.blocks[stretch.start : stretch.end], sizes, strict=True):
                if size >= 0:
                    held[block] = next(served)
                elif size == FREE:
                    held.pop(block, None)
        if died is not None or (wanted and number == wanted[-1]):
            break
    return _Told(
        courses, allocator.retries, allocator.refused_bytes, allocator.allocated_bytes, allocator.reserved_bytes, died,
        moments,
    )  # fmt: skip


def _replay(rows: Composed, told: _Told) -> Replay:
    courses: list[StretchReplay] = []
    peaks: dict[tuple[int, Phase], tuple[int, int]] = {}
    model_bytes: int | None = None
    most_reserved = requests = served = 0
    figures = told.courses
    for at, (position, stretch) in zip(range(0, len(figures), 4), rows.stretches, strict=False):
        start_bytes, peak_bytes, reserved_bytes, served = figures[at : at + 4]
        requests += served
        if position >= 0:
            model_bytes = start_bytes if model_bytes is None else model_bytes
            most_reserved = max(most_reserved, reserved_bytes)
        courses.append(StretchReplay(position, stretch, start_bytes, peak_bytes, ()))
        key = (stretch.begin.step if position < 0 else position), stretch.begin.phase
        most, reserved = peaks.get(key, (0, 0))
        peaks[key] = max(most, peak_bytes), max(reserved, reserved_bytes)
    died = None
    if told.died is not None:
        last = courses[-1]
        sizes = rows.sizes_of(len(courses) - 1)
        asking = [row for row, size in enumerate(sizes, start=last.stretch.start) if size >= 0]
        block = rows.blocks[asking[served]]
        died = Exhausted(requests, block, last.stretch.begin.phase, max(0, last.position), *told.died)
    load = [most for (_, phase), (most, _) in peaks.items() if phase is Phase.LOAD]
    if model_bytes is None:
        model_bytes = allocated_bytes = told.allocated_bytes
        most_reserved, phase = told.reserved_bytes, Phase.LOAD
    else:
        highest = max((course for course in courses if course.position >= 0), key=lambda course: course.peak_bytes)
        allocated_bytes, phase = highest.peak_bytes, highest.stretch.begin.phase
    return Replay(
        completed=died is None,
        out_of_memory=died,
        model_bytes=model_bytes,
        load_peak_bytes=max(load, default=0),
        allocated_bytes=allocated_bytes,
        reserved_bytes=most_reserved,
        peaks=tuple(PhaseReplay(step, phase, *both) for (step, phase), both in peaks.items()),
        peak_phase=phase,
        retries=told.retries,
        same_until_bytes=told.refused_bytes,
        courses=courses,
    )


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
