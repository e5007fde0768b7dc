"""A program's requests and frees, replayed through the allocator, phase by phase.

By the C code where it was compiled and knows the settings, else in Python. Of a run that was put together
(tape/compose.py), which may have tens of millions of requests, what each was given is not kept: what was alive where
most was allocated is asked for in a second run up to there.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import repeat
from typing import TypeAlias

from tunecast.prediction.memory.allocator import UNLIMITED, AllocatorSettings, CachingAllocator, OutOfMemory
from tunecast.prediction.native import run as native_run
from tunecast.records import NamedTuple, dataclass, field
from tunecast.tape.columns import numbers
from tunecast.tape.compose import Composed
from tunecast.tape.fold import Folded
from tunecast.tape.op import Phase, Role, Tape
from tunecast.tape.program import FREE, Program, Stretch, program


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
    """max_memory_allocated, with the peaks reset where `model_bytes` is taken, or never (`Replays.from_start`)."""
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
    served_last: int = field(default=0, repr=False, compare=False)
    """Requests of the last stretch that were served: where it died, all before the one that was not."""

    @property
    def died_at(self) -> tuple[int, int]:
        """The stretch, and how many of its requests were served."""
        return len(self.courses) - 1, self.served_last


@dataclass(frozen=True)
class AtPeak:
    """Where something was held at most, and what was alive there by role, which sums to it exactly."""

    allocated_bytes: int
    phase: Phase
    step: int
    by_role: Mapping[Role, int]


def rows_of(tape: Tape | Folded | Program) -> Program:
    if isinstance(tape, Program):
        return tape
    return tape.program if isinstance(tape, Folded) else program(tape)


def replay(tape: Tape | Folded | Program, settings: AllocatorSettings, capacity_bytes: int | None = None) -> Replay:
    """Run the tape's allocations. A capacity binds from the first of them, loading included."""
    return replay_of(rows_of(tape), take(rows_of(tape), settings, capacity_bytes))


class Replays:
    """One run under one set of settings, and ever other capacities."""

    def __init__(self, rows: Program | Composed, settings: AllocatorSettings, *, from_start: bool = False) -> None:
        self.rows, self.settings = rows, settings
        self.from_start = from_start
        """Peaks count what precedes the first step too, as those of a script do that never resets them."""
        self.least_bytes: int | None = None
        """Once it was searched for (`needs.smallest_capacity_bytes`): of every card this run is held against."""
        self._seen: list[Replay] = []

    @cached_property
    def unlimited(self) -> Replay:
        return self._replay(None)

    def within(self, capacity_bytes: int) -> Replay:
        """A capacity only ever says no: two that say no to the same requests see the same run."""
        if not self.settings.needs_capacity:
            for run in [self.unlimited, *self._seen]:
                if max(peak.reserved_bytes for peak in run.peaks) <= capacity_bytes < run.same_until_bytes:
                    return run
        return self._replay(capacity_bytes)

    def at_peak(self, run: Replay, capacity_bytes: int | None = None) -> AtPeak:
        """Where `allocated_bytes` was first reached after loading; `capacity_bytes` is the run's."""
        first = -1 if self.from_start else 0
        trained = [number for number, course in enumerate(run.courses) if course.position >= first]
        every = trained or range(len(run.courses))
        return self._moments(run, [max(every, key=lambda number: run.courses[number].peak_bytes)], capacity_bytes)[0]

    def phase_peaks(self, run: Replay, capacity_bytes: int | None = None) -> tuple[AtPeak, ...]:
        """Each phase's highest moment over all steps, the first of equals, in the order the phases first began."""
        highest: dict[Phase, int] = {}
        for number, course in enumerate(run.courses):
            phase, best = course.stretch.begin.phase, highest.get(course.stretch.begin.phase)
            if course.stretch.start < course.stretch.end and (
                best is None or course.peak_bytes > run.courses[best].peak_bytes
            ):
                highest[phase] = number
        wanted = sorted(highest.values())
        found = dict(zip(wanted, self._moments(run, wanted, capacity_bytes), strict=True))
        return tuple(found[number] for number in highest.values())

    def _moments(self, run: Replay, wanted: Sequence[int], capacity_bytes: int | None) -> list[AtPeak]:
        """Of a program, by what its requests were given."""
        rows = self.rows
        assert isinstance(rows, Program)
        alive: dict[int, int] = {}
        found = []
        for number, course in enumerate(run.courses[: max(wanted, default=-1) + 1]):
            for nbytes, block in [(alive.pop(old), new) for old, new in rows.renames_before(number)]:
                alive[block] = nbytes
            if number in wanted:
                found.append(moment_of(rows, number, course, alive, course.given))
            crossings = rows.crossings(course.stretch)
            if len(course.given) < crossings.requests:
                break  # here it died
            for block in crossings.died:
                del alive[block]
            alive.update((block, course.given[nth]) for block, nth in crossings.born)
        return found

    def _replay(self, capacity_bytes: int | None) -> Replay:
        taken = take(self.rows, self.settings, capacity_bytes)
        self._seen.append(replay_of(self.rows, taken, from_start=self.from_start))
        del self._seen[:-MOST_SEEN]
        return self._seen[-1]


MOST_SEEN = 8
"""Capacities of a run that are remembered."""


MOST_RECENT = 4
"""Runs whose replays are kept: one of each generation of cards that a look at a job holds it against
(advise/every_card.py), and the card's own."""
_recent: list[Replays] = []


def replays_of(rows: Program, settings: AllocatorSettings) -> Replays:
    """Of a program that was replayed a moment ago, the same: a structure gives out the same one for the same sizes
    (tape/structure.py), as on another card, or with other micro-batches to a step."""
    known = (each for each in _recent if each.rows is rows and each.settings == settings)
    found = next(known, None) or Replays(rows, settings)
    _recent[:] = [found, *(each for each in _recent if each is not found)][:MOST_RECENT]
    return found


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


def in_c(rows: Program | Composed) -> RowsInC:
    """As the C code reads them: blocks, sizes, streams, names, stretches, renames, table. Made once a program, whose
    sizes are no places in a table."""
    if isinstance(rows, Composed):
        return rows.blocks, rows.places, rows.streams, rows.names, rows.rows, rows.renames, rows.table
    kept: dict[str, RowsInC] = rows.__dict__
    if "_in_c" not in kept:
        plan, streams = rows.schedule, array("q", rows.streams or ())
        if streams and not 0 <= min(streams) <= max(streams) < MOST_STREAMS:
            number = {stream: place for place, stream in enumerate(set(streams))}
            streams = array("q", [number[stream] for stream in streams])
        kept["_in_c"] = plan.blocks, numbers(rows.sizes), streams, plan.names, plan.rows, plan.renames, array("q")
    return kept["_in_c"]


class RunFigures(NamedTuple):
    """What a run came to."""

    given: Sequence[int] | None
    """What each request was given, one stretch after another. None of a run that was put together: it may have tens of
    millions of them."""
    courses: Sequence[int]
    """Of each stretch: allocated at its start, most allocated, most reserved, requests served."""
    retries: int
    refused_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    died: tuple[int, int, int, int] | None
    moments: Sequence[tuple[Sequence[int] | dict[int, int], Sequence[int]]] = ()
    """Of each stretch that was asked about: what was alive when it began, and what its requests were given."""


def take(
    rows: Program | Composed,
    settings: AllocatorSettings,
    capacity_bytes: int | None,
    wanted: Sequence[int] | None = None,
) -> RunFigures:
    """`wanted`: of a run that was put together, stretches whose `moments` are asked for; it ends with the last."""
    allocator = CachingAllocator(settings, capacity_bytes)
    if native_run is not None and played_at_once(settings):
        with suppress(OverflowError):  # sizes beyond its reach
            given, courses, retries, refused, allocated, reserved, died, moments = native_run(
                *in_c(rows), allocator.limit_bytes, settings.oldest_segment_first, settings.arena_bytes,
                settings.large_segment_bytes, card_bytes(settings), allocator.physical_bytes,
                None if isinstance(rows, Program) else array("q", wanted or ()),
            )  # fmt: skip
            asked = [(memoryview(alive).cast("q"), memoryview(served).cast("q")) for alive, served in moments]
            kept = memoryview(given).cast("q") if isinstance(rows, Program) else None
            told = memoryview(courses).cast("q")
            return RunFigures(kept, told, retries, refused, allocated, reserved, died, asked)
    return _take_in_python(rows, allocator, wanted)


def _take_in_python(rows: Program | Composed, allocator: CachingAllocator, wanted: Sequence[int] | None) -> RunFigures:
    """As the C code does."""
    courses, moments = array("q"), []
    kept: list[int] | None = [] if isinstance(rows, Program) else None
    held: dict[int, int] = {}
    died = None
    for number, (_, stretch) in enumerate(_stretches(rows)):
        renames, sizes, first = rows.renames_before(number), rows.sizes_of(number), stretch.start
        allocator.rename(renames)
        allocator.reset_peaks()
        start_bytes = allocator.allocated_bytes
        if wanted is not None:
            held.update([(new, held.pop(old, 0)) for old, new in renames])
        alive = dict(held) if wanted and number in wanted else None
        given: list[int] = []
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
        if kept is not None:
            kept += given
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
    ends = allocator.retries, allocator.refused_bytes, allocator.allocated_bytes, allocator.reserved_bytes
    return RunFigures(kept, courses, *ends, died, moments)


def _stretches(rows: Program | Composed) -> list[tuple[int, Stretch]]:
    return rows.stretches if isinstance(rows, Composed) else rows.schedule.stretches


def replay_of(rows: Program | Composed, taken: RunFigures, *, from_start: bool = False) -> Replay:
    """A run as torch would report it. `from_start`: peaks are never reset."""
    courses: list[StretchReplay] = []
    peaks: dict[tuple[int, Phase], tuple[int, int]] = {}
    model_bytes: int | None = None
    most_reserved = requests = served = 0
    figures, given = taken.courses, taken.given
    for at, (position, stretch) in zip(range(0, len(figures), 4), _stretches(rows), strict=False):
        start_bytes, peak_bytes, reserved_bytes, served = figures[at : at + 4]
        own = () if given is None else given[requests : requests + served]
        courses.append(StretchReplay(position, stretch, start_bytes, peak_bytes, own))
        requests += served
        if position >= 0 and model_bytes is None:
            model_bytes = start_bytes
        if position >= 0 or from_start:
            most_reserved = max(most_reserved, reserved_bytes)
        key = (stretch.begin.step if position < 0 else position), stretch.begin.phase
        most, reserved = peaks.get(key, (0, 0))
        peaks[key] = max(most, peak_bytes), max(reserved, reserved_bytes)
    died = None
    if taken.died is not None:
        last = courses[-1]
        sizes = rows.sizes_of(len(courses) - 1)
        asking = [row for row, size in enumerate(sizes, start=last.stretch.start) if size >= 0]
        block = rows.blocks[asking[served]]
        died = Exhausted(requests, block, last.stretch.begin.phase, max(0, last.position), *taken.died)
    load = [most for (_, phase), (most, _) in peaks.items() if phase is Phase.LOAD]
    if model_bytes is None:
        model_bytes = allocated_bytes = taken.allocated_bytes
        most_reserved, phase = taken.reserved_bytes, Phase.LOAD
        if from_start and courses:
            allocated_bytes = max(course.peak_bytes for course in courses)
            most_reserved = max(figures[2::4])
    else:
        counted = [course for course in courses if course.position >= 0 or from_start]
        highest = max(counted, key=lambda course: course.peak_bytes)
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
        retries=taken.retries,
        same_until_bytes=taken.refused_bytes,
        courses=courses,
        served_last=served,
    )


def moment_of(
    rows: Program | Composed, number: int, course: StretchReplay, alive: Mapping[int, int], given: Iterable[int]
) -> AtPeak:
    """Where the how-manieth stretch first holds most; `alive` is what was when it began."""
    held, now, served = dict(alive), course.start_bytes, iter(given)
    for row, size in enumerate(rows.sizes_of(number), start=course.stretch.start):
        if now == course.peak_bytes:
            break
        block = rows.blocks[row]
        if size >= 0:
            held[block] = nbytes = next(served)
            now += nbytes
        elif size == FREE:
            now -= held.pop(block, 0)
    by_role = dict.fromkeys(Role, 0)
    for block, nbytes in held.items():
        by_role[rows.roles[block]] += nbytes
    begin = course.stretch.begin
    step = begin.step if course.position < 0 else course.position
    return AtPeak(course.peak_bytes, begin.phase, max(0, step), by_role)


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
