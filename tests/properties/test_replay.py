"""A run whose steps repeat is replayed by what is known of them: with the same figures as event by event."""

from __future__ import annotations

import random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.predict import replay as replay_module
from tunecast.predict.allocator import AllocatorSettings, CachingAllocator, OutOfMemory
from tunecast.predict.replay import Replays, at_peak, phase_peaks, replay
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Phase, Role, Tape
from tunecast.tape.program import program
from tunecast.units import KIB, MIB

MIXED = (512, 20 * KIB, 100 * KIB, 600 * KIB, MIB, 3 * MIB, 9 * MIB, 12 * MIB, 31 * MIB, 32 * MIB + 512)
SMALL = (512, 20 * KIB, 100 * KIB, 300 * KIB, 600 * KIB, 700 * KIB, 900 * KIB, MIB, 3 * MIB, 12 * MIB)


def run_of(seed: int, steps: int) -> tuple[Event, ...]:
    """Loading, a first step that leaves state behind, then the same step again and again: it makes its batch before
    the last one dies, and frees the rest in some order."""
    chance = random.Random(seed)
    sizes = chance.choice((MIXED, SMALL))
    blocks = iter(range(1_000_000))
    events: list[Event] = []

    def made(count: int, out: list[Event]) -> list[int]:
        numbers = [next(blocks) for _ in range(count)]
        out += [Alloc(number, chance.choice(sizes), chance.choice(list(Role))) for number in numbers]
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
                    events.append(Alloc(alive[-1], again.choice(sizes), again.choice(list(Role))))
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
                allocator.malloc(event.block, event.nbytes)
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
    with patch("tunecast.tape.program.STRETCH_ROWS", stretch_rows), patch.object(replay_module, "native_run", code):
        compare(seed, steps, tight, oldest)


def compare(seed: int, steps: int, tight: float | int | None, oldest: bool) -> None:
    events = run_of(seed, steps)
    how = AllocatorSettings(oldest_segment_first=oldest)
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
    assert sum(at_peak(rows, run).by_role.values()) == run.allocated_bytes
    for moment in phase_peaks(rows, run):
        assert sum(moment.by_role.values()) == moment.allocated_bytes
