"""A run whose steps repeat is replayed by what is known of them: with the same figures as event by event."""

from __future__ import annotations

import random
from array import array
from contextlib import suppress
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.prediction import native
from tunecast.prediction.memory import replay as replay_module
from tunecast.prediction.memory.allocator import AllocatorSettings, CachingAllocator, OutOfMemory
from tunecast.prediction.memory.needs import smallest_capacity_bytes
from tunecast.prediction.memory.replay import Replays, in_c, replay
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Phase, Role, Tape
from tunecast.tape.program import program
from tunecast.units import KIB, MIB

MIXED = (512, 20 * KIB, 100 * KIB, 600 * KIB, MIB, 3 * MIB, 9 * MIB, 12 * MIB, 31 * MIB, 32 * MIB + 512)
SMALL = (512, 20 * KIB, 100 * KIB, 300 * KIB, 600 * KIB, 700 * KIB, 900 * KIB, MIB, 3 * MIB, 12 * MIB)


def run_of(seed: int, steps: int) -> tuple[Event, ...]:
    """Loading, a first step that leaves state behind, then the same step again and again: it makes its batch before
    the last one dies, and frees the rest in some order."""
    chance = random.Random(seed)
    sizes, streams = chance.choice((MIXED, SMALL)), chance.choice(((0,), (0, 0, 1, 7)))
    blocks = iter(range(1_000_000))
    events: list[Event] = []

    def made(count: int, out: list[Event]) -> list[int]:
        numbers = [next(blocks) for _ in range(count)]
        out += [
            Alloc(number, chance.choice(sizes), chance.choice(list(Role)), stream=chance.choice(streams))
            for number in numbers
        ]
        return numbers

    gone = made(chance.randint(1, 8), events)
    events += [Free(block) for block in gone[::2]]
    if chance.random() < 0.5:
        events.append(EmptyCache())
    batch: list[int] = []
    for step in range(steps):
        again = random.Random(seed + 1)  # the same choices in every step
        events.append(Begin(Phase.OTHER, step))
        old, batch = batch, []
        for size in (20 * KIB, 20 * KIB, 100 * KIB):
            batch.append(next(blocks))
            events.append(Alloc(batch[-1], size, Role.TEMPORARIES))
        events += [Free(block) for block in old]
        alive: list[int] = []
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            events.append(Begin(phase, step))
            for _ in range(again.randint(3, 25)):
                if alive and again.random() < 0.45:
                    events.append(Free(alive.pop(again.randrange(len(alive)))))
                else:
                    alive.append(next(blocks))
                    stream = again.choice(streams)
                    events.append(Alloc(alive[-1], again.choice(sizes), again.choice(list(Role)), stream=stream))
            if step == 0 and phase is Phase.OPTIMIZER:
                made(3, events)
        events += [Free(block) for block in alive]
    return tuple(events)


def event_by_event(events: tuple[Event, ...], how: AllocatorSettings, capacity: int | None) -> tuple[object, ...]:
    allocator = CachingAllocator(how, capacity)
    peaks: dict[tuple[int, Phase], tuple[int, int]] = {}
    now = Begin(Phase.LOAD)

    def close() -> None:
        most = peaks.get((now.step, now.phase), (0, 0))
        here = allocator.peak_allocated_bytes, allocator.peak_reserved_bytes
        peaks[now.step, now.phase] = max(most[0], here[0]), max(most[1], here[1])
        allocator.reset_peaks()

    died = None
    try:
        for event in events:
            if isinstance(event, Alloc):
                allocator.malloc(event.block, event.nbytes, event.stream)
            elif isinstance(event, Free):
                allocator.free(event.block)
            elif isinstance(event, Begin):
                close()
                now = event
            else:
                allocator.empty_cache()
    except OutOfMemory as error:
        died = (error.requested_bytes, error.segment_bytes, error.allocated_bytes, error.reserved_bytes, now)
    close()
    return peaks, allocator.retries, died


@given(
    st.integers(0, 10**9),
    st.integers(4, 9),
    st.none() | st.floats(0.3, 1.0) | st.integers(-4, -1),
    st.booleans(),
    st.sampled_from((1, 7, 2000)),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_known_steps_replay_as_events_do(
    seed: int, steps: int, tight: float | int | None, oldest: bool, stretch_rows: int, in_c: bool
) -> None:
    """The capacity is some part of what the run reserves without one, or just what it reserved at some time."""
    code = replay_module.native_run if in_c else None
    how = AllocatorSettings(oldest_segment_first=oldest)
    with patch("tunecast.tape.program.STRETCH_ROWS", stretch_rows), patch.object(replay_module, "native_run", code):
        compare(seed, steps, tight, how)


@given(
    st.integers(0, 10**9),
    st.integers(4, 9),
    st.none() | st.floats(0.3, 1.0) | st.integers(-4, -1),
    st.booleans(),
    st.sampled_from((8 * MIB, 64 * MIB, 200 * MIB, 2**37)),  # of the first some blocks are wider than a range
)
@settings(max_examples=400, deadline=None)
def test_expandable_segments_replay_as_events_do(
    seed: int, steps: int, tight: float | int | None, physical: bool, device: int
) -> None:
    how = AllocatorSettings(expandable_segments=True, capacity_is_physical=physical, device_total_bytes=device)
    compare(seed, steps, tight, how)


def compare(seed: int, steps: int, tight: float | int | None, how: AllocatorSettings) -> None:
    events = run_of(seed, steps)
    rows = program(Tape(events))
    reserved = sorted({peak.reserved_bytes for peak in replay(rows, how).peaks})
    capacity = None
    if tight is not None:
        capacity = int(reserved[-1] * tight) if tight > 0 else reserved[max(int(tight), -len(reserved))]
    assert len(set(rows.order)) < len(rows.order)  # the last ones are one step, taken again and again
    run = replay(rows, how, capacity)
    end = run.out_of_memory
    died = end and (
        end.requested_bytes, end.segment_bytes, end.allocated_bytes, end.reserved_bytes, Begin(end.phase, end.step),
    )  # fmt: skip
    found = {(peak.step, peak.phase): (peak.allocated_bytes, peak.reserved_bytes) for peak in run.peaks}
    assert (found, run.retries, died) == event_by_event(events, how, capacity)
    if capacity is not None:
        assert Replays(rows, how).within(capacity) == run  # from where it first binds
    runs = Replays(rows, how)
    for part in (97, 60, 85, 91, 70, 88, 94):  # each may be another one, or begin as one
        asked = reserved[-1] * part // 100
        assert runs.within(asked) == replay(rows, how, asked)
    assert sum(runs.at_peak(run).by_role.values()) == run.allocated_bytes
    for moment in runs.phase_peaks(run):
        assert sum(moment.by_role.values()) == moment.allocated_bytes


@pytest.mark.skipif(native.least is None, reason="not compiled")
@given(
    st.integers(0, 10**9), st.integers(4, 9), st.booleans(), st.booleans(), st.booleans(), st.sampled_from((1, 7, 2000))
)
@settings(max_examples=300, deadline=None)
def test_the_least_capacity_is_searched_alike_in_c(
    seed: int, steps: int, oldest: bool, expandable: bool, physical: bool, stretch_rows: int
) -> None:
    how = AllocatorSettings(expandable, oldest_segment_first=oldest, capacity_is_physical=physical)
    with patch("tunecast.tape.program.STRETCH_ROWS", stretch_rows):
        rows = program(Tape(run_of(seed, steps)))
        in_c = smallest_capacity_bytes(Replays(rows, how))
        with patch.object(native, "least", None), patch.object(replay_module, "native_run", None):
            assert smallest_capacity_bytes(Replays(rows, how)) == in_c


needs_c = pytest.mark.skipif(native.run is None, reason="nothing was compiled")


@needs_c
def test_sizes_beyond_the_c_code_s_reach_are_replayed_in_python() -> None:
    huge = 2**60
    rows = program(Tape((Begin(Phase.FORWARD, 0), Alloc(0, huge), Free(0), Alloc(1, 512))))
    assert replay(rows, AllocatorSettings()).allocated_bytes == huge
    assert smallest_capacity_bytes(Replays(rows, AllocatorSettings())) == huge


@needs_c
@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from(("run", "least")))
@settings(max_examples=300, deadline=None)
def test_numbers_that_do_not_belong_together_are_refused(seed: int, harm: int, name: str) -> None:
    """The C code reads what it is told to only where there is something: any number may be any other one."""
    rows, chance = program(Tape(run_of(seed, 4))), random.Random(harm)
    last = (chance.choice((0, 2**35)), 2**36 if name == "run" else chance.random() < 0.5)
    asked = () if name == "least" else (chance.choice((None, array("q", [0, 2]))),)
    whole = (*in_c(rows), 2**40, False, chance.choice((0, 32 * MIB)), 20 * MIB, *last, *asked)
    given_ = [array("q", each) if isinstance(each, array) else each for each in whole]
    if chance.random() < 0.5:  # sizes as places in a table
        given_[6] = array("q", sorted({size for size in given_[1] if size >= 0}))
        given_[1] = array("q", [given_[6].index(size) if size >= 0 else size for size in given_[1]])
    for _ in range(chance.randint(1, 3)):
        at = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, *([12, 13] if name == "run" else [])))
        value, odd = given_[at], chance.choice((-3, -2, -1, 0, 1, 2, 7, 40, 10**6, 2**40, 2**62, -(2**62)))
        if value is None:
            continue
        if not isinstance(value, array):
            given_[at] = min(odd, 10**6) if at == 3 else odd
        elif value and chance.random() < 0.8:
            value[chance.randrange(len(value))] = odd
        else:
            given_[at] = value[: chance.randrange(len(value) + 1)] * chance.choice((1, 2))
    with suppress(ValueError, OverflowError, MemoryError):
        getattr(native, name)(*given_)
