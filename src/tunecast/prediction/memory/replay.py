"""A program's requests and frees, replayed through the allocator, phase by phase.

A run takes the same step many times, and after one or two of them the allocator does the same each time but for a few
small blocks: the batch wanders, since the next one is made before the last one dies. So what a stretch of a step did is
kept, and when it comes again to large pools that are as they were (`_Known.holds`), they end as they ended then. Pools
share nothing but the capacity, so small blocks, which are a third, are replayed alone. They are as large wherever they
lie, so what is allocated when is known as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import repeat
from typing import TypeAlias

from tunecast.prediction.memory.allocator import (
    UNLIMITED,
    AllocatorSettings,
    CachingAllocator,
    OutOfMemory,
    Place,
    WouldFree,
)
from tunecast.prediction.native import run as native_run
from tunecast.records import NamedTuple, dataclass, field
from tunecast.tape.columns import numbers
from tunecast.tape.fold import Folded
from tunecast.tape.op import Phase, Role, Tape
from tunecast.tape.program import Program, Stretch, program


@dataclass(frozen=True)
class Exhausted:
    """Where a run died, with the figures of torch's message."""

    request: int
    """The how-manieth of the run it was, from 0."""
    block: int
    """Whose request it was."""
    phase: Phase
    step: int
    requested_bytes: int
    segment_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class PhaseReplay:
    """The most that was held in one phase of one step; what it started with counts."""

    step: int
    phase: Phase
    allocated_bytes: int
    reserved_bytes: int


class StretchReplay(NamedTuple):
    """How one stretch of the run went."""

    position: int
    """The step, by its place in the run; -1: loading."""
    stretch: Stretch
    start_bytes: int
    peak_bytes: int
    """Allocated, at its start and at most."""
    given: Sequence[int]
    """What each request was given, in order."""


@dataclass(frozen=True)
class Replay:
    """What torch would report of the run. Where it died (`completed` is False), of the run until then."""

    completed: bool
    out_of_memory: Exhausted | None
    model_bytes: int
    """Allocated right before the first Begin that is not LOAD."""
    load_peak_bytes: int
    allocated_bytes: int
    """max_memory_allocated, with the peaks reset where `model_bytes` is taken."""
    reserved_bytes: int
    """max_memory_reserved, likewise."""
    peaks: tuple[PhaseReplay, ...]
    """In the order the phases first began, LOAD included."""
    peak_phase: Phase
    """Where `allocated_bytes` was reached first."""
    retries: int
    same_until_bytes: int = field(default=UNLIMITED, repr=False, compare=False)
    """With any capacity from the most it reserved to less than this the run goes the same."""
    courses: Sequence[StretchReplay] = field(default=(), repr=False, compare=False)


def rows_of(tape: Tape | Folded | Program) -> Program:
    if isinstance(tape, Program):
        return tape
    return tape.program if isinstance(tape, Folded) else program(tape)


def replay(tape: Tape | Folded | Program, settings: AllocatorSettings, capacity_bytes: int | None = None) -> Replay:
    """Run the tape's allocations. A capacity binds from the first of them, loading included."""
    return _ReplayRun(rows_of(tape), settings, capacity_bytes).replay()


class Replays:
    """One program under one set of settings, and ever other capacities."""

    def __init__(self, rows: Program, settings: AllocatorSettings) -> None:
        self.rows, self.settings = rows, settings
        self._seen: list[Replay] = []
        self._kept: list[_ReplayRun] = []

    @cached_property
    def unlimited(self) -> Replay:
        return self._replayed(_ReplayRun(self.rows, self.settings, None))

    def within(self, capacity_bytes: int) -> Replay:
        """A capacity only ever says no: two that say no to the same requests see the same run. So one that is known may
        be the answer, and else its beginning is."""
        if self.settings.needs_capacity:
            return _ReplayRun(self.rows, self.settings, capacity_bytes).replay()
        for run in [self.unlimited, *self._seen]:
            if max(peak.reserved_bytes for peak in run.peaks) <= capacity_bytes < run.same_until_bytes:
                return run
        begun = [run for run in self._kept if run.goes_within(capacity_bytes)]
        if not begun:
            return self._replayed(_ReplayRun(self.rows, self.settings, capacity_bytes))
        furthest = max(begun, key=lambda run: (run.position, run.number))
        return self._replayed(furthest.continued(capacity_bytes))

    def _replayed(self, run: _ReplayRun) -> Replay:
        run.kept = None if self.settings.needs_capacity or run.at_once else self._kept
        self._seen.append(run.replay())
        return self._seen[-1]


def _is_plain(settings: AllocatorSettings) -> bool:
    """Whether a pool's own free blocks alone decide about a request."""
    return not any(
        (settings.expandable_segments, settings.garbage_collection_threshold, settings.roundup_power2_divisions)
    )


def played_at_once(settings: AllocatorSettings) -> bool:
    """Whether the C code plays it."""
    return native_run is not None and not (
        settings.max_split_size_bytes is not None
        or settings.garbage_collection_threshold
        or settings.roundup_power2_divisions
    )


def card_bytes(settings: AllocatorSettings) -> int:
    """As the C code is told: of the card that expandable segments are as wide as; 0: there are none."""
    return settings.device_total_bytes if settings.expandable_segments else 0


RowsInC: TypeAlias = "tuple[array[int], array[int], array[int], int, array[int], array[int], array[int]]"
MOST_STREAMS = 4096
"""Of the C code."""


def in_c(rows: Program) -> RowsInC:
    """As the C code reads them: blocks, sizes, streams, names, stretches, renames, no table. Made once a program."""
    kept: dict[str, RowsInC] = rows.__dict__
    if "_in_c" not in kept:
        plan, streams = rows.schedule, array("q", rows.streams or ())
        if streams and not 0 <= min(streams) <= max(streams) < MOST_STREAMS:
            number = {stream: place for place, stream in enumerate(set(streams))}
            streams = array("q", [number[stream] for stream in streams])
        kept["_in_c"] = plan.blocks, numbers(rows.sizes), streams, plan.names, plan.rows, plan.renames, array("q")
    return kept["_in_c"]


class _ReplayRun:
    def __init__(self, rows: Program, settings: AllocatorSettings, capacity_bytes: int | None) -> None:
        self.rows, self.settings = rows, settings
        self.allocator = CachingAllocator(settings, capacity_bytes)
        self.alone = rows.streams is None and _is_plain(settings)
        self.at_once = played_at_once(settings)
        self.known: dict[tuple[int, int], _Known] = {}
        """What a stretch did, by its step and place in it."""
        self.courses: list[StretchReplay] = []
        self.peaks: dict[tuple[int, Phase], tuple[int, int]] = {}
        self.model_bytes: int | None = None
        self.reserved_bytes = 0
        self.position = -1
        """The next step; -1: loading."""
        self.number = 0
        """The next stretch of the step."""
        self.kept: list[_ReplayRun] | None = None
        """Where to put the run as it was before each stretch."""

    @property
    def peak_reserved_bytes(self) -> int:
        return max((reserved for _, reserved in self.peaks.values()), default=0)

    def goes_within(self, capacity_bytes: int) -> bool:
        """Whether the run would have come this far in the same way."""
        return self.peak_reserved_bytes <= capacity_bytes < self.allocator.refused_bytes

    def continued(self, capacity_bytes: int) -> _ReplayRun:
        """This run from where it is, under a capacity."""
        other = copy(self)
        other.allocator = self.allocator.copied(capacity_bytes)
        other.known, other.courses, other.peaks = dict(self.known), self.courses[:], dict(self.peaks)
        return other

    def replay(self) -> Replay:
        allocator, died = self.allocator, None
        try:
            if not (self.at_once and self._take_all()):
                self._take_each()
        except OutOfMemory as error:
            died = self._exhausted(error)
        load_bytes = [most for (_, phase), (most, _) in self.peaks.items() if phase is Phase.LOAD]
        if self.model_bytes is None:
            self.model_bytes = allocated_bytes = allocator.allocated_bytes
            reserved_bytes, peak_phase = allocator.reserved_bytes, Phase.LOAD
        else:
            trained = [course for course in self.courses if course.position >= 0]
            highest = max(trained, key=lambda course: course.peak_bytes)
            allocated_bytes, peak_phase = highest.peak_bytes, highest.stretch.begin.phase
            reserved_bytes = self.reserved_bytes
        return Replay(
            completed=died is None,
            out_of_memory=died,
            model_bytes=self.model_bytes,
            load_peak_bytes=max(load_bytes, default=0),
            allocated_bytes=allocated_bytes,
            reserved_bytes=reserved_bytes,
            peaks=tuple(PhaseReplay(step, phase, *both) for (step, phase), both in self.peaks.items()),
            peak_phase=peak_phase,
            retries=allocator.retries,
            same_until_bytes=allocator.refused_bytes,
            courses=self.courses,
        )

    def _take_all(self) -> bool:
        """By the C code; False: sizes beyond its reach, and nothing was done."""
        allocator, plan = self.allocator, self.rows.schedule
        assert native_run is not None
        try:
            told = native_run(
                *in_c(self.rows), allocator.limit_bytes, self.settings.oldest_segment_first,
                self.settings.large_segment_bytes, card_bytes(self.settings), allocator.physical_bytes, None,
            )  # fmt: skip
        except OverflowError:
            return False
        given, courses, allocator.retries, allocator.refused_bytes, allocated_bytes, reserved_bytes, died, _ = told
        figures, served = memoryview(courses).cast("q"), memoryview(given).cast("q")
        first = 0
        for at, (position, stretch) in zip(range(0, len(figures), 4), plan.stretches, strict=False):
            start_bytes, peak_bytes, allocator.peak_reserved_bytes, requests = figures[at : at + 4]
            if position >= 0 and self.model_bytes is None:
                self.model_bytes = start_bytes
            self._close(StretchReplay(position, stretch, start_bytes, peak_bytes, served[first : first + requests]))
            first += requests
        allocator.allocated_bytes, allocator.reserved_bytes = allocated_bytes, reserved_bytes
        if died is not None:
            raise OutOfMemory(*died)
        return True

    def _take_each(self) -> None:
        rows = self.rows
        again = {step for step in rows.order if rows.order.count(step) > 1}
        while self.position < len(rows.order):
            step = -1 if self.position < 0 else rows.order[self.position]
            stretches = rows.stretches[step + 1]
            while self.number < len(stretches):
                if self.kept is not None:
                    self.kept.append(self.continued(UNLIMITED))
                if not self.number:
                    self.allocator.rename(rows.handed_over(self.position))
                self._take(stretches[self.number], (step, self.number) if step in again else None)
                self.number += 1
            self.position, self.number = self.position + 1, 0

    def _take(self, stretch: Stretch, key: tuple[int, int] | None) -> None:
        allocator, position = self.allocator, self.position
        if position >= 0 and self.model_bytes is None:
            self.model_bytes = allocator.allocated_bytes
        allocator.reset_peaks()
        start_bytes = allocator.allocated_bytes
        known = self.known.get(key) if key is not None else None
        if known is not None and known.holds(allocator) and self._repeated(known):
            self._close(StretchReplay(position, stretch, start_bytes, start_bytes + known.rise_bytes, known.given))
            return
        given: list[int] = []
        before = None
        if key is not None and self.alone and not stretch.empties:
            before = _Before.of(allocator, self.rows, stretch)
        try:
            self._play(stretch, given)
        finally:
            self._close(StretchReplay(position, stretch, start_bytes, allocator.peak_allocated_bytes, given))
        if key is not None:
            self.known.pop(key, None)
            if before is not None and before.growths == allocator.growths:
                self.known[key] = _Known(self.rows, stretch, before, allocator, given)

    def _repeated(self, known: _Known) -> bool:
        """The large pool ends as it ended; the small blocks are replayed, if that needs nothing of the large pool."""
        try:
            with self.allocator.without_freeing():
                known.play_small(self.allocator)
        except WouldFree:
            return False
        known.repeat_large(self.allocator)
        return True

    def _play(self, stretch: Stretch, given: list[int]) -> None:
        rows, start = self.rows, stretch.start
        for end in [*stretch.empties, stretch.end]:
            streams = repeat(0) if rows.streams is None else rows.streams[start:end]
            self.allocator.play(rows.blocks[start:end], rows.sizes[start:end], streams, given)
            if end < stretch.end:
                self.allocator.empty_cache()
            start = end + 1

    def _close(self, course: StretchReplay) -> None:
        self.courses.append(course)
        step, phase = max(0, course.position), course.stretch.begin.phase
        if course.position < 0:
            step = course.stretch.begin.step
        elif self.reserved_bytes < self.allocator.peak_reserved_bytes:
            self.reserved_bytes = self.allocator.peak_reserved_bytes
        most, reserved = self.peaks.get((step, phase), (0, 0))
        self.peaks[step, phase] = (
            max(most, course.peak_bytes), max(reserved, self.allocator.peak_reserved_bytes),
        )  # fmt: skip

    def _exhausted(self, error: OutOfMemory) -> Exhausted:
        last = self.courses[-1]
        rows, (begin, start, end, _) = self.rows, last.stretch
        asking = [b for b, s in zip(rows.blocks[start:end], rows.sizes[start:end], strict=True) if s >= 0]
        return Exhausted(
            request=sum(len(course.given) for course in self.courses),
            block=asking[len(last.given)],
            phase=begin.phase,
            step=max(0, last.position),
            requested_bytes=error.requested_bytes,
            segment_bytes=error.segment_bytes,
            allocated_bytes=error.allocated_bytes,
            reserved_bytes=error.reserved_bytes,
        )


class _Before(NamedTuple):
    """What the allocator stood like before a stretch, as far as large blocks go."""

    free: dict[int, int]
    """The size of the free block at an address."""
    dying: Mapping[int, Place]
    """The blocks the stretch finds alive and frees."""
    allocated_bytes: int
    growths: int

    @staticmethod
    def of(allocator: CachingAllocator, rows: Program, stretch: Stretch) -> _Before:
        return _Before(
            dict(allocator.pool(is_small=False).sizes),
            allocator.large_places(rows.crossings(stretch).died),
            allocator.allocated_bytes,
            allocator.growths,
        )


class _Known:
    """What a stretch did that asked the driver for nothing."""

    def __init__(
        self, rows: Program, stretch: Stretch, before: _Before, allocator: CachingAllocator, given: list[int]
    ) -> None:
        self.rows, self.stretch, self.before, self.given = rows, stretch, before, given
        self.rise_bytes = allocator.peak_allocated_bytes - before.allocated_bytes
        crossings = rows.crossings(stretch)
        self.born = allocator.large_places(block for block, _ in crossings.born)
        self.small_died = [block for block in crossings.died if block not in before.dying]
        was, now = before.free.items(), allocator.pool(is_small=False).sizes.items()
        self.gone, self.come = was - now, now - was

    def holds(self, allocator: CachingAllocator) -> bool:
        """Whether the large blocks it frees lie where they lay, and the free ones are the same."""
        return (
            allocator.pool(is_small=False).sizes == self.before.free
            and allocator.large_places(self.before.dying) == self.before.dying
        )

    def play_small(self, allocator: CachingAllocator) -> None:
        blocks, sizes = self.rows.small_rows(self.stretch, self.small_died)
        allocator.play(blocks, sizes, repeat(0), [])

    def repeat_large(self, allocator: CachingAllocator) -> None:
        pool = allocator.pool(is_small=False)
        for address, size in self.gone:
            pool.take(address, size)
        for address, size in self.come:
            pool.put(address, size)
        allocator.settle(self.born, self.before.dying)


@dataclass(frozen=True)
class AtPeak:
    """Where something was held at most, and what was alive there by role, which sums to it exactly."""

    allocated_bytes: int
    phase: Phase
    step: int
    by_role: Mapping[Role, int]


def at_peak(rows: Program, run: Replay) -> AtPeak:
    """Where `allocated_bytes` was first reached after loading."""
    trained = [course for course in run.courses if course.position >= 0] or list(run.courses)
    return next(_moments(rows, run, [max(trained, key=lambda course: course.peak_bytes)]))


def phase_peaks(rows: Program, run: Replay) -> tuple[AtPeak, ...]:
    """Each phase's highest moment over all steps, the first of equals, in the order the phases first began."""
    highest: dict[Phase, StretchReplay] = {}
    for course in run.courses:
        begin, start, end, _ = course.stretch
        phase = begin.phase
        if start == end:
            continue
        if phase not in highest or course.peak_bytes > highest[phase].peak_bytes:
            highest[phase] = course
    moments = {moment.phase: moment for moment in _moments(rows, run, list(highest.values()))}
    return tuple(moments[phase] for phase in highest)


def _moments(rows: Program, run: Replay, wanted: Sequence[StretchReplay]) -> Iterator[AtPeak]:
    alive: dict[int, int] = {}
    position = -1
    for course in run.courses:
        if course.position != position:
            position = course.position
            for nbytes, block in [(alive.pop(old), new) for old, new in rows.handed_over(position)]:
                alive[block] = nbytes
        if any(course is one for one in wanted):
            by_role = dict.fromkeys(Role, 0)
            for block, nbytes in _highest(rows, course, alive).items():
                by_role[rows.roles[block]] += nbytes
            begin = course.stretch.begin
            yield AtPeak(course.peak_bytes, begin.phase, max(begin.step if position < 0 else 0, position), by_role)
        crossings = rows.crossings(course.stretch)
        if len(course.given) < crossings.requests:
            return  # here it died
        for block in crossings.died:
            del alive[block]
        alive.update((block, course.given[nth]) for block, nth in crossings.born)


def _highest(rows: Program, course: StretchReplay, alive: Mapping[int, int]) -> dict[int, int]:
    """What is alive where the course first holds most."""
    held, now = dict(alive), course.start_bytes
    given = iter(course.given)
    for row in range(course.stretch.start, course.stretch.end):
        if now == course.peak_bytes:
            break
        block, size = rows.blocks[row], rows.sizes[row]
        if size >= 0:
            held[block] = nbytes = next(given)
            now += nbytes
        elif size == -1:
            now -= held.pop(block)
    return held
