"""Tapes short enough to replay on paper."""

from __future__ import annotations

import pytest

from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.needs import peak, smallest_capacity_bytes, timeline
from tunecast.prediction.memory.replay import PhaseReplay, Replays, replay
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Op, Phase, Role, Tape, op_before
from tunecast.tape.program import program
from tunecast.units import MIB

NATIVE = AllocatorSettings()
EXPANDABLE = AllocatorSettings(expandable_segments=True)


def least_bytes(tape: Tape, how: AllocatorSettings) -> int:
    return smallest_capacity_bytes(Replays(program(tape), how))


def alloc(block: int, mib: float, role: Role = Role.TEMPORARIES, module: str = "") -> Alloc:
    return Alloc(block, int(mib * MIB), role, module)


def step(number: int, first_block: int) -> tuple[Event, ...]:
    """30 MiB of activations, the backward pass with 40 MiB of gradients and 10 of temporaries, the optimizer."""
    activations, gradients, temporary, update = range(first_block, first_block + 4)
    return (
        Begin(Phase.FORWARD, number),
        Op("mm", "layer", source="train.py:3"),
        alloc(activations, 30, Role.ACTIVATIONS, "layer"),
        Begin(Phase.BACKWARD, number),
        Op("mm_backward", "layer", source="train.py:4"),
        alloc(gradients, 40, Role.GRADIENTS, "layer"),
        alloc(temporary, 10),
        Free(activations),
        Free(temporary),
        Begin(Phase.OPTIMIZER, number),
        Op("adam", source="train.py:5"),
        alloc(update, 24),
        Free(update),
        Free(gradients),
    )


TAPE = Tape(
    (
        Begin(Phase.LOAD),
        Op("empty", source="train.py:1"),
        alloc(0, 100, Role.WEIGHTS, "layer"),
        alloc(1, 60),
        Free(1),
        EmptyCache(),
        *step(0, 10),
        *step(1, 20),
    )
)


# What torch would report


def test_replay_reports_what_torch_would() -> None:
    run = replay(TAPE, NATIVE)
    assert run.completed and run.out_of_memory is None and run.retries == 0
    assert run.load_peak_bytes == 160 * MIB
    assert run.model_bytes == 100 * MIB
    assert run.allocated_bytes == 180 * MIB  # weights, activations, gradients, temporary: 100 + 30 + 40 + 10
    assert run.reserved_bytes == 180 * MIB  # the optimizer's 24 MiB come out of the 30 of the activations
    assert run.peak_phase is Phase.BACKWARD


def test_peaks_by_phase_count_what_a_phase_starts_with() -> None:
    assert replay(TAPE, NATIVE).peaks == (
        PhaseReplay(0, Phase.LOAD, 160 * MIB, 160 * MIB),
        PhaseReplay(0, Phase.FORWARD, 130 * MIB, 130 * MIB),
        PhaseReplay(0, Phase.BACKWARD, 180 * MIB, 180 * MIB),
        PhaseReplay(0, Phase.OPTIMIZER, 164 * MIB, 180 * MIB),
        PhaseReplay(1, Phase.FORWARD, 130 * MIB, 180 * MIB),
        PhaseReplay(1, Phase.BACKWARD, 180 * MIB, 180 * MIB),
        PhaseReplay(1, Phase.OPTIMIZER, 164 * MIB, 180 * MIB),
    )


def test_a_phase_that_comes_twice_in_a_step_has_one_peak() -> None:
    tape = Tape(
        (Begin(Phase.FORWARD), alloc(1, 30), Free(1), Begin(Phase.BACKWARD), Begin(Phase.FORWARD), alloc(2, 50))
    )
    assert [(p.phase, p.allocated_bytes / MIB) for p in replay(tape, NATIVE).peaks] == [
        (Phase.LOAD, 0),
        (Phase.FORWARD, 50),
        (Phase.BACKWARD, 0),
    ]


def test_the_model_itself_can_be_the_peak() -> None:
    tape = Tape((alloc(1, 100, Role.WEIGHTS), Begin(Phase.FORWARD), Free(1), alloc(2, 30), Begin(Phase.BACKWARD)))
    run = replay(tape, NATIVE)
    assert (run.model_bytes, run.allocated_bytes, run.peak_phase) == (100 * MIB, 100 * MIB, Phase.FORWARD)
    assert peak(tape, NATIVE).by_role[Role.WEIGHTS] == 100 * MIB


def test_a_tape_that_only_loads() -> None:
    tape = Tape((Begin(Phase.LOAD), alloc(1, 100), alloc(2, 60), Free(2)))
    run = replay(tape, NATIVE)
    assert (run.load_peak_bytes, run.model_bytes, run.allocated_bytes) == (160 * MIB, 100 * MIB, 100 * MIB)
    assert run.peak_phase is Phase.LOAD
    assert peak(tape, NATIVE).allocated_bytes == 100 * MIB


def test_an_empty_tape() -> None:
    assert replay(Tape(()), NATIVE).reserved_bytes == 0
    assert peak(Tape(()), NATIVE).allocated_bytes == 0
    assert timeline(Tape(()), NATIVE) == []
    assert least_bytes(Tape(()), NATIVE) == 0


# Capacity


def test_out_of_memory_names_the_event_and_its_operation() -> None:
    run = replay(TAPE, NATIVE, 176 * MIB)
    assert not run.completed
    assert run.out_of_memory is not None
    at = run.out_of_memory
    requests = [event for event in TAPE.events if isinstance(event, Alloc)]
    assert requests[at.request] == alloc(12, 10)
    op = op_before(TAPE.events, at.request)
    assert op is not None and op.name == "mm_backward"
    assert (at.phase, at.step) == (Phase.BACKWARD, 0)
    assert (at.requested_bytes, at.segment_bytes) == (10 * MIB, 10 * MIB)
    assert (at.allocated_bytes, at.reserved_bytes) == (170 * MIB, 170 * MIB)


def test_a_capacity_binds_while_loading_too() -> None:
    tape = Tape((alloc(1, 60), Free(1), alloc(2, 20), EmptyCache(), Begin(Phase.FORWARD)))
    run = replay(tape, NATIVE, 40 * MIB)
    assert run.out_of_memory is not None
    assert run.out_of_memory.phase is Phase.LOAD


def test_smallest_capacity_of_a_run_without_waste_is_its_peak() -> None:
    assert least_bytes(TAPE, NATIVE) == 180 * MIB


def test_smallest_capacity_is_below_reserved_when_cached_memory_can_be_given_back() -> None:
    # 30 MiB, then 40: natively reserved together, though never alive together.
    tape = Tape((Begin(Phase.FORWARD), alloc(1, 30), Free(1), alloc(2, 40), Free(2)))
    assert replay(tape, NATIVE).reserved_bytes == 70 * MIB
    assert least_bytes(tape, NATIVE) == 40 * MIB
    assert replay(tape, NATIVE, 40 * MIB).retries == 1


def test_smallest_capacity_is_above_the_peak_when_fragments_stay() -> None:
    # 6 MiB pin a segment of 20 while 40 are wanted: 60, though only 46 are alive.
    tape = Tape((Begin(Phase.FORWARD), alloc(1, 14), alloc(2, 6), Free(1), alloc(3, 40)))
    fragmented = Tape((Begin(Phase.FORWARD), alloc(1, 6), alloc(2, 40)))
    assert least_bytes(fragmented, NATIVE) == 60 * MIB
    assert least_bytes(tape, NATIVE) == 60 * MIB


def test_smallest_capacity_of_expandable_segments_is_found_though_the_limit_is_looser_than_the_pages() -> None:
    # 25 MiB map 40, but torch compares the capacity with a segment of 26.
    tape = Tape((Begin(Phase.FORWARD), alloc(1, 25)))
    assert replay(tape, EXPANDABLE).reserved_bytes == 40 * MIB
    assert least_bytes(tape, EXPANDABLE) == 26 * MIB


def test_smallest_capacity_counts_loading() -> None:
    tape = Tape((alloc(1, 60), Free(1), EmptyCache(), Begin(Phase.FORWARD), alloc(2, 20)))
    assert least_bytes(tape, NATIVE) == 60 * MIB


# What the peak is made of


def test_the_peak_by_role_and_module() -> None:
    top = peak(TAPE, NATIVE)
    assert top.allocated_bytes == 180 * MIB
    assert TAPE.events[top.event] == alloc(12, 10)
    assert (top.phase, top.step) == (Phase.BACKWARD, 0)
    assert {role: nbytes // MIB for role, nbytes in top.by_role.items() if nbytes} == {
        Role.WEIGHTS: 100,
        Role.ACTIVATIONS: 30,
        Role.GRADIENTS: 40,
        Role.TEMPORARIES: 10,
    }
    assert top.by_module == {"layer": 170 * MIB, "": 10 * MIB}


def test_the_largest_blocks_name_the_line_that_made_them() -> None:
    top = peak(TAPE, NATIVE, largest=2)
    assert [(live.block, live.nbytes // MIB, live.source, live.phase) for live in top.largest] == [
        (0, 100, "train.py:1", Phase.LOAD),
        (11, 40, "train.py:4", Phase.BACKWARD),
    ]


def test_a_block_counts_with_what_could_not_be_split_off() -> None:
    top = peak(Tape((Begin(Phase.FORWARD), alloc(1, 19))), NATIVE)  # a segment of 20, of which 1 stays with the block
    assert top.allocated_bytes == top.by_role[Role.TEMPORARIES] == 20 * MIB
    assert (top.largest[0].nbytes, top.largest[0].held_bytes) == (19 * MIB, 20 * MIB)


# The course of it


def test_the_timeline_follows_every_event_while_there_is_room() -> None:
    samples = timeline(TAPE, NATIVE)
    assert [sample.allocated_bytes // MIB for sample in samples[:6]] == [100, 160, 100, 100, 130, 170]
    assert [sample.reserved_bytes // MIB for sample in samples[:6]] == [100, 160, 160, 100, 130, 170]
    assert [sample.phase for sample in samples[3:6]] == [Phase.LOAD, Phase.FORWARD, Phase.BACKWARD]
    assert samples[5].by_role[Role.GRADIENTS] == 40 * MIB


def test_a_thinned_timeline_keeps_the_peaks() -> None:
    noise = tuple(event for block in range(100, 400) for event in (alloc(block, 1), Free(block)))
    tape = TAPE.with_events((*TAPE.events, Begin(Phase.OTHER, 2), *noise))
    samples = timeline(tape, NATIVE, limit=30)
    assert len(samples) <= 30
    assert max(sample.allocated_bytes for sample in samples) == peak(tape, NATIVE).allocated_bytes
    assert max(sample.reserved_bytes for sample in samples) == replay(tape, NATIVE).reserved_bytes
    for phase in replay(tape, NATIVE).peaks:
        assert phase.phase in {sample.phase for sample in samples}
    assert [sample.event for sample in samples] == sorted(sample.event for sample in samples)
    assert samples[-1].event == len(tape.events) - 1


# Tapes that cannot be


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ((Free(1),), "not alive"),
        ((alloc(1, 1), Free(1), Free(1)), "not alive"),
        ((alloc(1, 1), Free(1), alloc(1, 1)), "second time"),
    ],
)
def test_a_broken_tape_is_refused(events: tuple[Event, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        program(Tape(events))


def test_a_compiled_tape_replays_the_same() -> None:
    assert replay(program(TAPE), EXPANDABLE) == replay(TAPE, EXPANDABLE)
