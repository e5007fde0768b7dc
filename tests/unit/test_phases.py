"""What is alive at each phase's highest moment, by hand."""

from __future__ import annotations

import random

from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import AtPeak, Replays, replay
from tunecast.tape.op import Alloc, Begin, Event, Free, Phase, Role, Tape
from tunecast.tape.program import program
from tunecast.units import MIB

SETTINGS = AllocatorSettings()


def told(*events: Event) -> list[tuple[str, int, int, dict[str, int]]]:
    rows = program(Tape(events))
    return [
        (peak.phase.value, peak.step, peak.allocated_bytes // MIB, parts_of(peak))
        for peak in Replays(rows, SETTINGS).phase_peaks(replay(rows, SETTINGS))
    ]


def parts_of(peak: AtPeak) -> dict[str, int]:
    return {role.value: nbytes // MIB for role, nbytes in peak.by_role.items() if nbytes}


def test_each_phase_in_its_highest_step() -> None:
    """The second forward pass holds 20 more; the optimizer starts with what the forward pass left."""
    assert told(
        Alloc(0, 100 * MIB, Role.WEIGHTS),
        Alloc(1, 50 * MIB, Role.TEMPORARIES),
        Free(1),
        Begin(Phase.FORWARD, 0),
        Alloc(2, 20 * MIB, Role.ACTIVATIONS),
        Begin(Phase.OPTIMIZER, 0),
        Free(2),
        Alloc(3, 10 * MIB, Role.OPTIMIZER),
        Begin(Phase.FORWARD, 1),
        Alloc(4, 40 * MIB, Role.ACTIVATIONS),
        Free(4),
    ) == [
        ("load", 0, 150, {"weights": 100, "temporaries": 50}),
        ("forward", 1, 150, {"weights": 100, "optimizer": 10, "activations": 40}),
        ("optimizer", 0, 120, {"weights": 100, "activations": 20}),
    ]


def test_of_equal_steps_the_first() -> None:
    step = [
        (Begin(Phase.FORWARD, number), Alloc(number, 20 * MIB, Role.ACTIVATIONS), Free(number)) for number in range(3)
    ]
    assert told(*(event for events in step for event in events)) == [("forward", 0, 20, {"activations": 20})]


def test_any_program_agrees_with_the_replay_and_with_the_peak_of_all() -> None:
    chance = random.Random(3)
    for _ in range(50):
        events: list[Event] = []
        alive: list[int] = []
        for block in range(200):
            events.append(Alloc(block, chance.randrange(1, 30 * MIB), chance.choice(list(Role))))
            alive.append(block)
            while alive and chance.random() < 0.5:
                events.append(Free(alive.pop(chance.randrange(len(alive)))))
            if chance.random() < 0.05:
                events.append(Begin(chance.choice(list(Phase)[1:]), block // 50))
        rows = program(Tape(tuple(events)))
        run = replay(rows, SETTINGS)
        highest: dict[Phase, int] = {}
        for peak in run.peaks:
            highest[peak.phase] = max(highest.get(peak.phase, 0), peak.allocated_bytes)
        found = Replays(rows, SETTINGS).phase_peaks(run)
        assert {peak.phase: peak.allocated_bytes for peak in found} == highest
        assert all(sum(peak.by_role.values()) == peak.allocated_bytes for peak in found)
        most = Replays(rows, SETTINGS).at_peak(run)
        if most.phase is not Phase.LOAD:
            assert parts_of(most) in [parts_of(peak) for peak in found]
