"""What memory a tape needs: its allocations and frees, replayed through the allocator.

`peak` says what the figures of a replay are made of, `timeline` their course for a plot, and `smallest_capacity_bytes`
the least an allocator must be given.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from tunecast.prediction import native
from tunecast.prediction.memory.allocator import AllocatorSettings, CachingAllocator, rounded_bytes
from tunecast.prediction.memory.replay import Replays, card_bytes, in_c, played_at_once
from tunecast.records import dataclass
from tunecast.tape.compose import Composed
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Op, Phase, Role, Tape
from tunecast.tape.program import FREE, Program
from tunecast.units import MIB

CAPACITY_STEP_BYTES = 2 * MIB
"""Every segment is a multiple of this, so capacities in between decide nothing new."""


@dataclass(frozen=True)
class PeakBlock:
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
    largest: tuple[PeakBlock, ...]


@dataclass(frozen=True)
class Sample:
    """The state after one event."""

    event: int
    phase: Phase
    step: int
    by_role: Mapping[Role, int]
    allocated_bytes: int
    reserved_bytes: int


def smallest_capacity_bytes(runs: Replays) -> int:
    """A capacity with which the tape completes and 2 MiB below which it does not, found by climbing and bisection.

    It lies between the bytes alive at the peak, which no allocator can do without, and those reserved without a limit.
    More memory is not always better: a tight capacity frees cached blocks early and so may end up less fragmented than
    a wider one. So there can be further such boundaries, below this one and above it. Bisection keeps to what it has
    replayed (its upper end completed, its lower end failed), as does a measurement. Whether a run fits a
    given card is for `replay` with that card's capacity to say, not for a comparison with this number; what is told
    beside that verdict is `least_beside`.
    """
    if runs.least_bytes is None:
        runs.least_bytes = _least_bytes(runs)
    return runs.least_bytes


def _least_bytes(runs: Replays) -> int:
    rows, settings = runs.rows, runs.settings
    most_bytes = max(peak.reserved_bytes for peak in runs.unlimited.peaks)
    if native.least is not None and played_at_once(settings):
        with suppress(OverflowError):  # sizes beyond its reach
            return native.least(
                *in_c(rows), most_bytes, settings.oldest_segment_first, settings.large_segment_bytes,
                card_bytes(settings), settings.capacity_is_physical,
            )  # fmt: skip
    # By fraction, expandable segments may pass the capacity by less than a page (AllocatorSettings).
    slack = settings.large_segment_bytes if settings.expandable_segments else 0
    fails = max(-1, (_live_peak_bytes(rows, settings) - slack - 1) // CAPACITY_STEP_BYTES)
    completes = _steps(most_bytes)
    return _boundary_bytes(runs, fails, completes)


def least_beside(runs: Replays, least_bytes: int, capacity_bytes: int, fits: bool) -> int:
    """The boundary that a verdict on `capacity_bytes` is told with: at most that where the run completes with it, more
    where it does not (`fits`). `least_bytes` is one found elsewhere, and the answer where it lies on that side."""
    if fits == (least_bytes <= capacity_bytes):
        return least_bytes
    here = capacity_bytes // CAPACITY_STEP_BYTES
    if fits:
        return _boundary_bytes(runs, -1, here)
    most_bytes = max(peak.reserved_bytes for peak in runs.unlimited.peaks)
    return _boundary_bytes(runs, here, max(here + 1, _steps(most_bytes)))


def _boundary_bytes(runs: Replays, fails: int, completes: int) -> int:
    """Between a capacity that fails and one that completes, in steps of 2 MiB; where a capacity changes a run before it
    binds, the upper one may fail too, and one above it is looked for."""
    if runs.settings.needs_capacity:
        while not runs.within(completes * CAPACITY_STEP_BYTES).completed:
            fails, completes = completes, completes + max(1, completes // 16)
    probe = fails + 1
    while completes - fails > 1:
        died = runs.within(probe * CAPACITY_STEP_BYTES).out_of_memory
        if died is None:
            completes, probe = probe, (fails + probe) // 2
        else:  # with what it lacked here it gets further; such runs are short, so they come first
            fails, lacked = probe, _steps(died.reserved_bytes + died.segment_bytes)
            probe = lacked if fails < lacked < completes else (fails + completes) // 2
    return completes * CAPACITY_STEP_BYTES


def _steps(nbytes: int) -> int:
    return -(-nbytes // CAPACITY_STEP_BYTES)


def _live_peak_bytes(rows: Program | Composed, settings: AllocatorSettings) -> int:
    """Most bytes alive at once, each block as large as its request rounded."""
    asked = (rows.table or rows.places) if isinstance(rows, Composed) else rows.sizes
    rounded = {size: rounded_bytes(size, settings.roundup_power2_divisions) for size in set(asked) if size > 0}
    sizes: dict[int, int] = {}
    now = most = 0
    for renames, blocks, asked in _in_turn(rows):
        moved = [(sizes.pop(old, 0), new) for old, new in renames]
        sizes.update((new, nbytes) for nbytes, new in moved)
        for block, size in zip(blocks, asked, strict=True):
            if size > 0:
                sizes[block] = nbytes = rounded[size]
                now += nbytes
                if now > most:
                    most = now
            elif size == FREE:
                now -= sizes.pop(block, 0)
    return most


def _in_turn(rows: Program | Composed) -> Iterator[tuple[list[tuple[int, int]], Sequence[int], Sequence[int]]]:
    """What blocks are called from there on, and the blocks and sizes of the rows that follow."""
    if isinstance(rows, Program):  # every step as it is written
        yield [], rows.blocks, rows.sizes
        return
    for number, (_, stretch) in enumerate(rows.stretches):
        yield rows.renames_before(number), rows.blocks[stretch.start : stretch.end], rows.sizes_of(number)


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


def peak(
    tape: Tape, settings: AllocatorSettings, largest: int = 20, capacity_bytes: int | None = None, *,
    from_start: bool = False,
) -> Peak:  # fmt: skip
    """What is alive at the allocated peak after loading, by role and module, and its `largest` blocks.

    A capacity is one the run completes with: freeing and retrying cuts memory up in another way. `from_start`: loading
    counts too.
    """
    allocator = CachingAllocator(settings, capacity_bytes)
    held_bytes: dict[int, int] = {}
    loading = not from_start
    most, at = 0, len(tape.events) - 1
    for index, event in enumerate(tape.events):
        if isinstance(event, Begin):
            if loading and event.phase is not Phase.LOAD:
                loading = False
                most, at = allocator.allocated_bytes, index
        elif _hold(allocator, event, held_bytes) and not loading and allocator.allocated_bytes > most:
            most, at = allocator.allocated_bytes, index

    alive: dict[int, PeakBlock] = {}
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
            alive[block] = PeakBlock(
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
