"""What holds of the allocator whatever is asked of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.prediction.memory.allocator import AllocatorSettings, CachingAllocator, OutOfMemory, rounded_bytes
from tunecast.prediction.memory.needs import least_beside, peak, smallest_capacity_bytes, timeline
from tunecast.prediction.memory.replay import Replays, replay
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Phase, Role, Tape
from tunecast.tape.program import program
from tunecast.units import KIB, MIB

NBYTES = st.one_of(
    st.integers(1, 2 * MIB),
    st.integers(MIB, 24 * MIB),
    st.sampled_from([1, 512, 600 * KIB, MIB, MIB + 1, 10 * MIB, 19 * MIB, 20 * MIB, 33 * MIB, 64 * MIB, 100 * MIB]),
)
Steps = list[tuple[int, int, int, int]]
STEPS = st.lists(st.tuples(NBYTES, st.integers(0, 2), st.integers(0, 3), st.integers(0, 1000)), max_size=60)
"""Bytes to allocate, stream, how many blocks to free before, and which."""
NATIVE = st.builds(
    AllocatorSettings,
    max_split_size_bytes=st.sampled_from([None, None, 20 * MIB, 40 * MIB]),
    roundup_power2_divisions=st.sampled_from([(), (), (4,) * 16]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.0, 0.5]),
    oldest_segment_first=st.booleans(),
)
PHYSICAL = NATIVE.flatmap(
    lambda native: st.builds(
        replace, st.just(native), expandable_segments=st.booleans(), capacity_is_physical=st.just(True)
    )
)
"""A capacity by fraction lets expandable segments past it by part of a page; a physical one does not."""


def events(steps: Steps) -> list[Event]:
    made: list[Event] = []
    alive: list[int] = []
    for block, (nbytes, stream, frees, which) in enumerate(steps):
        for _ in range(min(frees - 1, len(alive))):
            made.append(Free(alive.pop(which % len(alive))))
        made.append(
            EmptyCache() if which == 0 else Alloc(block, nbytes, list(Role)[which % 7], f"m{which % 3}", stream)
        )
        if which:
            alive.append(block)
        if which == 500:
            made.append(Begin(Phase.FORWARD, block))
    return made


def tape(steps: Steps) -> Tape:
    return Tape((Begin(Phase.FORWARD), *events(steps)))


def run(allocator: CachingAllocator, made: list[Event]) -> set[int]:
    """Blocks alive at the end; those that found no room never were."""
    alive: set[int] = set()
    for event in made:
        if isinstance(event, Alloc):
            try:
                allocator.malloc(event.block, event.nbytes, event.stream)
                alive.add(event.block)
            except OutOfMemory:
                pass
        elif isinstance(event, Free) and event.block in alive:
            allocator.free(event.block)
            alive.remove(event.block)
        elif isinstance(event, EmptyCache):
            allocator.empty_cache()
    return alive


@given(STEPS, PHYSICAL)
def test_live_blocks_do_not_overlap_and_hold_what_was_asked(steps: Steps, how: AllocatorSettings) -> None:
    allocator = CachingAllocator(how)
    made = events(steps)
    alive = run(allocator, made)
    asked = {event.block: event.nbytes for event in made if isinstance(event, Alloc)}
    places = sorted(allocator.place(block) for block in alive)
    for (address, size), (following, _) in pairwise(places):
        assert address + size <= following
    for block in alive:
        assert allocator.place(block)[1] >= rounded_bytes(asked[block], how.roundup_power2_divisions)
    assert sum(size for _, size in places) == allocator.allocated_bytes <= allocator.reserved_bytes


@given(STEPS, PHYSICAL, st.integers(0, 400))
def test_reserved_stays_within_the_capacity(steps: Steps, how: AllocatorSettings, capacity_mib: int) -> None:
    allocator = CachingAllocator(how, capacity_mib * MIB)
    run(allocator, events(steps))
    assert allocator.peak_allocated_bytes <= allocator.peak_reserved_bytes <= capacity_mib * MIB


@given(STEPS, NATIVE, st.integers(0, 400))
def test_a_capacity_by_fraction_is_passed_by_less_than_a_large_page(
    steps: Steps, how: AllocatorSettings, capacity_mib: int
) -> None:
    how = replace(how, expandable_segments=True)
    allocator = CachingAllocator(how, capacity_mib * MIB)
    run(allocator, events(steps))
    assert allocator.peak_reserved_bytes < capacity_mib * MIB + how.large_segment_bytes


@given(STEPS, PHYSICAL, st.none() | st.integers(0, 400), st.randoms(use_true_random=False))
def test_when_all_is_freed_in_any_order_and_the_cache_emptied_nothing_is_held(
    steps: Steps, how: AllocatorSettings, capacity_mib: int | None, random: Random
) -> None:
    allocator = CachingAllocator(how, None if capacity_mib is None else capacity_mib * MIB)
    alive = sorted(run(allocator, events(steps)))
    random.shuffle(alive)
    for block in alive:
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


@given(STEPS, NATIVE)
def test_the_order_of_frees_is_forgotten(steps: Steps, how: AllocatorSettings) -> None:
    """Free neighbours merge whichever comes first, so what follows a number of frees does not depend on their order."""
    made = events(steps)
    forward, backward = CachingAllocator(how), CachingAllocator(how)
    alive = sorted(run(forward, made))
    run(backward, made)
    gone = alive[::2]
    for block in gone:
        forward.free(block)
    for block in reversed(gone):
        backward.free(block)
    for number, (nbytes, stream, _, _) in enumerate(steps):
        forward.malloc(1000 + number, nbytes, stream)
        backward.malloc(1000 + number, nbytes, stream)
        assert forward.place(1000 + number) == backward.place(1000 + number)


@given(STEPS, PHYSICAL)
def test_a_capacity_of_what_is_reserved_anyway_changes_nothing(steps: Steps, how: AllocatorSettings) -> None:
    how = replace(how, garbage_collection_threshold=0.0)  # which frees before the capacity is reached
    free_run = replay(tape(steps), how)
    assert free_run.completed
    assert replay(tape(steps), how, max(phase.reserved_bytes for phase in free_run.peaks)) == free_run


@settings(max_examples=50)
@given(STEPS, NATIVE, st.booleans())
def test_the_smallest_capacity_completes_and_the_next_smaller_does_not(
    steps: Steps, how: AllocatorSettings, expandable: bool
) -> None:
    how = replace(how, expandable_segments=expandable)
    capacity = smallest_capacity_bytes(Replays(program(tape(steps)), how))
    tight = replay(tape(steps), how, capacity)
    assert tight.completed
    assert max(phase.reserved_bytes for phase in tight.peaks) < capacity + (
        how.large_segment_bytes if expandable else 1
    )
    if capacity:
        assert not replay(tape(steps), how, capacity - 2 * MIB).completed


@settings(max_examples=100)
@given(STEPS, NATIVE, st.booleans(), st.booleans(), st.integers(0, 400), st.integers(0, 2 * MIB - 1))
def test_the_least_told_beside_a_verdict_agrees_with_it(
    steps: Steps, how: AllocatorSettings, expandable: bool, physical: bool, near: int, odd: int
) -> None:
    """More memory can be worse, so there are several boundaries: the one that is told lies where the verdict says."""
    how = replace(how, expandable_segments=expandable, capacity_is_physical=physical)
    runs = Replays(program(tape(steps)), how)
    some = smallest_capacity_bytes(runs)
    capacity = max(0, some + (near - 200) * 2 * MIB // 10) + odd
    fits = runs.within(capacity).completed
    told = least_beside(runs, some, capacity, fits)
    assert fits == (told <= capacity)
    assert runs.within(told).completed
    assert not told or not runs.within(told - 2 * MIB).completed


@given(STEPS, PHYSICAL)
def test_the_peak_is_the_sum_of_its_parts(steps: Steps, how: AllocatorSettings) -> None:
    run_of_it, top = replay(tape(steps), how), peak(tape(steps), how, largest=1000)
    assert top.allocated_bytes == run_of_it.allocated_bytes
    assert sum(top.by_role.values()) == sum(top.by_module.values()) == top.allocated_bytes
    assert sum(live.held_bytes for live in top.largest) == top.allocated_bytes
    assert top.phase is run_of_it.peak_phase


@given(STEPS, PHYSICAL, st.integers(4, 40))
def test_a_timeline_is_short_and_keeps_the_peaks(steps: Steps, how: AllocatorSettings, limit: int) -> None:
    samples, run_of_it = timeline(tape(steps), how, limit), replay(tape(steps), how)
    assert len(samples) <= limit
    assert max((sample.allocated_bytes for sample in samples), default=0) == run_of_it.allocated_bytes
    assert max((sample.reserved_bytes for sample in samples), default=0) == run_of_it.reserved_bytes
    for sample in samples:
        assert sum(sample.by_role.values()) == sample.allocated_bytes <= sample.reserved_bytes
