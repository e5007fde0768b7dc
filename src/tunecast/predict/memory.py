"""What memory a tape needs: its allocations and frees, replayed through the allocator.

`replay` gives the figures torch would report, `peak` what they are made of, `timeline` their course for a plot, and
`smallest_capacity_bytes` the least an allocator must be given. Each is a pass or two over the tape.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tunecast.predict.allocator import AllocatorSettings, CachingAllocator, OutOfMemory, rounded_bytes
from tunecast.tape.fold import BEGIN, EMPTY_CACHE, FREE, Columns
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Op, Phase, Role, Tape
from tunecast.units import MIB

CAPACITY_STEP_BYTES = 2 * MIB
"""Every segment is a multiple of this, so capacities in between decide nothing new."""


@dataclass(frozen=True)
class Program:
    """A tape's memory events in three columns of integers, which replay several times faster than the tape."""

    blocks: list[int]
    """Of an Alloc or Free; of a Begin, its place in `begins`."""
    sizes: list[int]
    """Bytes asked for by an Alloc; FREE, BEGIN or EMPTY_CACHE for the rest."""
    streams: list[int]
    begins: list[Begin]
    roles: Mapping[int, Role] | Sequence[Role]
    """Of each block."""
    repeats: Mapping[int, list[int]]
    """Rows at which a step begins that does what the step before it did, as all steps after it do, with the blocks
    that cross that line. Once the allocator stands there as it stood one or two such steps before, the rest repeats."""


@dataclass(frozen=True)
class Exhausted:
    """Where a run died, with the figures of torch's message."""

    request: int
    """The how-manieth of the run it was, from 0."""
    phase: Phase
    step: int
    requested_bytes: int
    segment_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class PhasePeak:
    """The most that was held in one phase of one step; what it started with counts."""

    step: int
    phase: Phase
    allocated_bytes: int
    reserved_bytes: int


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
    peaks: tuple[PhasePeak, ...]
    """In the order the phases first began, LOAD included."""
    peak_phase: Phase
    """Where `allocated_bytes` was reached first."""
    retries: int
    held: Sequence[int] = field(default=(), repr=False, compare=False)
    """What each request was given, in order; as far as the run went."""


@dataclass(frozen=True)
class LiveBlock:
    """A block alive at the peak, and what made it."""

    block: int
    nbytes: int
    held_bytes: int
    """What it counts for in `allocated_bytes`: `nbytes` rounded, and a leftover too small to split off."""
    role: Role
    module: str
    phase: Phase
    step: int
    op: Op | None
    """The last operation before the allocation."""

    @property
    def source(self) -> str:
        return self.op.source if self.op else ""


@dataclass(frozen=True)
class Peak:
    """What is alive when `allocated_bytes` is first reached. Roles and modules each sum to it exactly."""

    allocated_bytes: int
    event: int
    phase: Phase
    step: int
    by_role: Mapping[Role, int]
    by_module: Mapping[str, int]
    """Largest first; '' is what belongs to no module."""
    largest: tuple[LiveBlock, ...]


@dataclass(frozen=True)
class Sample:
    """The state after one event."""

    event: int
    phase: Phase
    step: int
    by_role: Mapping[Role, int]
    allocated_bytes: int
    reserved_bytes: int


def program(tape: Tape) -> Program:
    """The tape's memory events. A block that is freed unborn, or born twice, is a bug of whoever made the tape."""
    blocks: list[int] = []
    sizes: list[int] = []
    streams: list[int] = []
    begins: list[Begin] = []
    roles: dict[int, Role] = {}
    born: set[int] = set()
    dead: set[int] = set()
    for index, event in enumerate(tape.events):
        stream = 0
        if isinstance(event, Op):
            continue
        if isinstance(event, Alloc):
            block, size, stream = event.block, max(0, event.nbytes), event.stream
            if block in born:
                raise ValueError(f"event {index}: block {block} is allocated a second time")
            born.add(block)
            roles[block] = event.role
        elif isinstance(event, Free):
            block, size = event.block, FREE
            if block not in born or block in dead:
                raise ValueError(f"event {index}: block {block} is freed, but is not alive")
            dead.add(block)
        elif isinstance(event, Begin):
            block, size = len(begins), BEGIN
            begins.append(event)
        else:
            block, size = 0, EMPTY_CACHE
        blocks.append(block)
        sizes.append(size)
        streams.append(stream)
    return Program(blocks, sizes, streams, begins, roles, _repeats(blocks, sizes, streams, begins))


def program_of(columns: Columns, repeats: Mapping[int, list[int]]) -> Program:
    """Of a folded tape (tape/fold.py), which has one stream."""
    return Program(columns.blocks, columns.sizes, [0] * len(columns.sizes), columns.begins, columns.roles, repeats)


def _repeats(blocks: list[int], sizes: list[int], streams: list[int], begins: list[Begin]) -> dict[int, list[int]]:
    starts = _step_starts(blocks, sizes, begins)
    if len(starts) < 4:
        return {}
    born = {block: row for row, (block, size) in enumerate(zip(blocks, sizes, strict=True)) if size >= 0}
    bounds = list(pairwise(starts))
    found: dict[int, list[int]] = {}
    for before, here in reversed(list(pairwise(bounds))):
        if not _alike(before, here, blocks, sizes, streams, born):
            break
        start, end = here
        frees = (blocks[row] for row in range(start, end) if sizes[row] == FREE)
        found[start] = [block for block in frees if born[block] < start]
    return found


def _step_starts(blocks: list[int], sizes: list[int], begins: list[Begin]) -> list[int]:
    """Rows where optimizer steps begin, and where the last ends: after it a program only lets go of its blocks."""
    starts, step = [], -1
    for row, size in enumerate(sizes):
        if size == BEGIN and begins[blocks[row]].phase is not Phase.LOAD and begins[blocks[row]].step != step:
            step = begins[blocks[row]].step
            starts.append(row)
    last = starts[-1] if starts else 0
    only_frees = all(size in (FREE, BEGIN) for size in sizes[last:])
    return starts if only_frees else [*starts, len(sizes)]


def _alike(
    one: tuple[int, int], two: tuple[int, int], blocks: list[int], sizes: list[int], streams: list[int],
    born: Mapping[int, int],
) -> bool:  # fmt: skip
    """The same requests in the same order, and the same of their blocks freed at the same places."""
    (first, first_end), (second, second_end) = one, two
    if sizes[first:first_end] != sizes[second:second_end] or streams[first:first_end] != streams[second:second_end]:
        return False
    shift = second - first
    return all(
        born[blocks[row + shift]] - born[blocks[row]] == shift for row in range(first, first_end) if sizes[row] == FREE
    )


def replay(tape: Tape | Program, settings: AllocatorSettings, capacity_bytes: int | None = None) -> Replay:
    """Run the tape's allocations. A capacity binds from the first of them, loading included."""
    rows = tape if isinstance(tape, Program) else program(tape)
    allocator = CachingAllocator(settings, capacity_bytes)
    malloc, free = allocator.malloc, allocator.free
    current = Begin(Phase.LOAD)
    peaks: dict[tuple[int, Phase], tuple[int, int]] = {}
    model_bytes: int | None = None
    after_load: list[tuple[int, int, Phase]] = []

    def close_phase() -> None:
        allocated, reserved = allocator.peak_allocated_bytes, allocator.peak_reserved_bytes
        if model_bytes is not None:
            after_load.append((allocated, reserved, current.phase))
        before = peaks.get((current.step, current.phase), (0, 0))
        peaks[current.step, current.phase] = (max(before[0], allocated), max(before[1], reserved))
        allocator.reset_peaks()

    out_of_memory = None
    held: list[int] = []
    block = 0
    repeats = rows.repeats
    seen: list[tuple[object, ...]] = []
    try:
        for row, (block, size, stream) in enumerate(zip(rows.blocks, rows.sizes, rows.streams, strict=True)):
            if size >= 0:
                held.append(malloc(block, size, stream))
            elif size == FREE:
                free(block)
            elif size == BEGIN:
                close_phase()
                if row in repeats:
                    state = allocator.state(repeats[row])
                    if state in seen[-2:]:
                        break
                    seen.append(state)
                current = rows.begins[block]
                if model_bytes is None and current.phase is not Phase.LOAD:
                    model_bytes = allocator.allocated_bytes
            else:
                allocator.empty_cache()
    except OutOfMemory as error:
        out_of_memory = Exhausted(
            request=len(held),
            phase=current.phase,
            step=current.step,
            requested_bytes=error.requested_bytes,
            segment_bytes=error.segment_bytes,
            allocated_bytes=error.allocated_bytes,
            reserved_bytes=error.reserved_bytes,
        )
    close_phase()
    load_peak_bytes = max((allocated for (_, phase), (allocated, _) in peaks.items() if phase is Phase.LOAD), default=0)
    if model_bytes is None:
        model_bytes = allocator.allocated_bytes
        after_load = [(allocator.allocated_bytes, allocator.reserved_bytes, Phase.LOAD)]
    allocated_bytes = max(allocated for allocated, _, _ in after_load)
    return Replay(
        completed=out_of_memory is None,
        out_of_memory=out_of_memory,
        model_bytes=model_bytes,
        load_peak_bytes=load_peak_bytes,
        allocated_bytes=allocated_bytes,
        reserved_bytes=max(reserved for _, reserved, _ in after_load),
        peaks=tuple(PhasePeak(step, phase, *both) for (step, phase), both in peaks.items()),
        peak_phase=next(phase for allocated, _, phase in after_load if allocated == allocated_bytes),
        retries=allocator.retries,
        held=held,
    )


@dataclass(frozen=True)
class AtPeak:
    """Where `allocated_bytes` was first reached, and what was alive there by role, which sums to it exactly."""

    allocated_bytes: int
    phase: Phase
    step: int
    by_role: Mapping[Role, int]


def at_peak(rows: Program, run: Replay) -> AtPeak:
    """Of the part of the program the replay ran, after loading."""
    requests = iter(run.held)
    held: dict[int, int] = {}
    now = most = at = 0
    begin, found, loading = Begin(Phase.LOAD), Begin(Phase.LOAD), True
    for row, (block, size) in enumerate(zip(rows.blocks, rows.sizes, strict=True)):
        if size >= 0:
            given = next(requests, None)
            if given is None:
                break
            held[block] = given
            now += given
            if now > most:
                most, at, found = now, row, begin
        elif size == FREE:
            now -= held.pop(block)
        elif size == BEGIN:
            begin = rows.begins[block]
            if loading and begin.phase is not Phase.LOAD:
                loading = False
                most, at, found = now, row, begin
    by_role = dict.fromkeys(Role, 0)
    alive: dict[int, int] = {}
    requests = iter(run.held)
    for block, size in zip(rows.blocks[: at + 1], rows.sizes[: at + 1], strict=True):
        if size >= 0:
            alive[block] = next(requests)
        elif size == FREE:
            del alive[block]
    for block, nbytes in alive.items():
        by_role[rows.roles[block]] += nbytes
    return AtPeak(most, found.phase, found.step, by_role)


def op_before(tape: Tape, request: int) -> Op | None:
    """The last operation before the how-manieth request."""
    op = None
    for event in tape.events:
        if isinstance(event, Op):
            op = event
        elif isinstance(event, Alloc):
            if not request:
                return op
            request -= 1
    return None


def smallest_capacity_bytes(tape: Tape | Program, settings: AllocatorSettings) -> int:
    """A capacity with which the tape completes and 2 MiB below which it does not, found by bisection.

    It lies between the bytes alive at the peak, which no allocator can do without, and those reserved without a limit.
    More memory is not always better: a tight capacity frees cached blocks early and so may end up less fragmented than
    a wider one. So there can be further such boundaries, below this one and above it. Bisection keeps to what it has
    replayed (its upper end completed, its lower end failed), as does a measurement by bisection. Whether a run fits a
    given card is for `replay` with that card's capacity to say, not for a comparison with this number.
    """
    rows = tape if isinstance(tape, Program) else program(tape)
    unlimited = replay(rows, settings)
    # By fraction, expandable segments may pass the capacity by less than a page (AllocatorSettings).
    slack = settings.large_segment_bytes if settings.expandable_segments else 0
    fails = max(-1, (_live_peak_bytes(rows, settings) - slack - 1) // CAPACITY_STEP_BYTES)
    completes = -(-max(peak.reserved_bytes for peak in unlimited.peaks) // CAPACITY_STEP_BYTES)
    while not replay(rows, settings, completes * CAPACITY_STEP_BYTES).completed:
        # Only where a capacity changes the run before it is full: expandable segments and garbage collection.
        fails, completes = completes, completes + max(1, completes // 16)
    while completes - fails > 1:
        middle = (fails + completes) // 2
        if replay(rows, settings, middle * CAPACITY_STEP_BYTES).completed:
            completes = middle
        else:
            fails = middle
    return completes * CAPACITY_STEP_BYTES


def _live_peak_bytes(rows: Program, settings: AllocatorSettings) -> int:
    """Most bytes alive at once, each block as large as its request rounded."""
    sizes: dict[int, int] = {}
    now = most = 0
    for block, size in zip(rows.blocks, rows.sizes, strict=True):
        if size > 0:
            sizes[block] = rounded = rounded_bytes(size, settings.roundup_power2_divisions)
            now += rounded
            most = max(most, now)
        elif size == FREE:
            now -= sizes.pop(block, 0)
    return most


def _hold(allocator: CachingAllocator, event: Event, held_bytes: dict[int, int]) -> bool:
    """Apply one event; whether it touched memory. `held_bytes` remembers what each block counts for."""
    if isinstance(event, Alloc):
        held_bytes[event.block] = allocator.malloc(event.block, event.nbytes, event.stream)
    elif isinstance(event, Free):
        allocator.free(event.block)
    elif isinstance(event, EmptyCache):
        allocator.empty_cache()
    else:
        return False
    return True


def peak(tape: Tape, settings: AllocatorSettings, largest: int = 20, capacity_bytes: int | None = None) -> Peak:
    """What is alive at the allocated peak after loading, by role and module, and its `largest` blocks.

    A capacity is one the run completes with: freeing and retrying cuts memory up in another way.
    """
    allocator = CachingAllocator(settings, capacity_bytes)
    held_bytes: dict[int, int] = {}
    loading = True
    most, at = 0, len(tape.events) - 1
    for index, event in enumerate(tape.events):
        if isinstance(event, Begin):
            if loading and event.phase is not Phase.LOAD:
                loading = False
                most, at = allocator.allocated_bytes, index
        elif _hold(allocator, event, held_bytes) and not loading and allocator.allocated_bytes > most:
            most, at = allocator.allocated_bytes, index

    alive: dict[int, LiveBlock] = {}
    begin, op = Begin(Phase.LOAD), None
    for event in tape.events[: at + 1]:
        if isinstance(event, Op):
            op = event
        elif isinstance(event, Begin):
            begin = event
        elif isinstance(event, Free):
            del alive[event.block]
        elif isinstance(event, Alloc):
            block, nbytes, role, module, _ = event
            alive[block] = LiveBlock(
                block, nbytes, held_bytes[block], role, module, phase=begin.phase, step=begin.step, op=op
            )
    by_role = dict.fromkeys(Role, 0)
    by_module: Counter[str] = Counter()
    for live in alive.values():
        by_role[live.role] += live.held_bytes
        by_module[live.module] += live.held_bytes
    return Peak(
        allocated_bytes=sum(by_role.values()),
        event=at,
        phase=begin.phase,
        step=begin.step,
        by_role=by_role,
        by_module=dict(by_module.most_common()),
        largest=tuple(sorted(alive.values(), key=lambda live: -live.held_bytes)[:largest]),
    )


def timeline(tape: Tape, settings: AllocatorSettings, limit: int = 2000) -> list[Sample]:
    """The course of the run in at most `limit` samples, the peaks of all of it and of each phase among them."""
    allocator = CachingAllocator(settings)
    held_bytes: dict[int, int] = {}
    indices, allocated, reserved = array("q"), array("q"), array("q")
    phase_starts: list[int] = [0]
    for index, event in enumerate(tape.events):
        if _hold(allocator, event, held_bytes):
            indices.append(index)
            allocated.append(allocator.allocated_bytes)
            reserved.append(allocator.reserved_bytes)
        elif isinstance(event, Begin):
            phase_starts.append(len(indices))
    few = len(indices) <= limit
    kept = range(len(indices)) if few else _thinned(allocated, reserved, phase_starts, limit)
    wanted = {indices[row]: reserved[row] for row in kept}

    samples: list[Sample] = []
    begin = Begin(Phase.LOAD)
    by_role = dict.fromkeys(Role, 0)
    roles: dict[int, Role] = {}
    for index, event in enumerate(tape.events):
        if isinstance(event, Begin):
            begin = event
        elif isinstance(event, Alloc):
            roles[event.block] = event.role
            by_role[event.role] += held_bytes[event.block]
        elif isinstance(event, Free):
            by_role[roles.pop(event.block)] -= held_bytes[event.block]
        if index in wanted:
            samples.append(Sample(index, begin.phase, begin.step, dict(by_role), sum(by_role.values()), wanted[index]))
    return samples


def _thinned(allocated: array[int], reserved: array[int], phase_starts: list[int], limit: int) -> set[int]:
    """Rows to keep: the peaks, the last, and the highest and lowest of as many equal stretches as there is room for."""

    def top(start: int, end: int) -> int:
        return max(range(start, end), key=allocated.__getitem__)

    rows = len(allocated)
    bounds = [*phase_starts, rows]
    peaks = {top(start, end) for start, end in pairwise(bounds) if start < end}
    kept = {top(0, rows), max(range(rows), key=reserved.__getitem__), rows - 1}
    kept |= set(sorted(peaks, key=lambda row: -allocated[row])[: max(0, limit - len(kept))])
    stretches = max(0, limit - len(kept)) // 2
    for stretch in range(stretches):
        start, end = rows * stretch // stretches, rows * (stretch + 1) // stretches
        kept |= {top(start, end), min(range(start, end), key=allocated.__getitem__)}
    return kept
