"""The whole run of a script, most of it skipped, is the run of which every step was traced, to the byte."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tunecast.door.trace import ScriptTrace, trace
from tunecast.tape.trace import run

SCRIPT = str(Path(__file__).parent / "scripts" / "whole_runs.py")


@cache
def traced(name: str, steps: int | None) -> ScriptTrace:
    return trace([SCRIPT, name], steps=steps)


def phases(found: ScriptTrace) -> dict[str, int]:
    """A step in place asks for nothing: where it is replayed, the optimizer's phase has no rows."""
    return {each.phase: each.allocated_bytes for each in found.trace.phases if each.phase != "optimizer"}


@pytest.mark.parametrize(
    ("name", "replayed"),
    [
        ("late_long", 8),
        ("late_evaluation", 13),
        ("labels_left_out", 6),
        ("square", 6),
        ("loss_outside", 10),
        ("scaler", 0),
        ("accumulation", 4),
        ("unfreezing", 5),
        ("zeros", 3),
        ("without_zero_grad", 0),
    ],
)
def test_it_is_as_if_all_were_traced(name: str, replayed: int) -> None:
    whole, every = traced(name, None), traced(name, 0)
    assert (whole.trace.steps, whole.trace.finished) == (every.trace.steps, True)
    assert whole.trace.replayed_steps >= replayed
    assert every.trace.replayed_steps == 0
    assert whole.memory.allocated_bytes == every.memory.allocated_bytes
    assert whole.memory.reserved_bytes == every.memory.reserved_bytes
    assert whole.memory.breakdown_bytes == every.memory.breakdown_bytes
    assert whole.smallest_capacity_bytes == every.smallest_capacity_bytes
    assert phases(whole) == phases(every)
    assert (whole.trace.word, every.trace.word) == ("exact", "exact")
    assert [each[:4] for each in whole.trace.largest[:5]] == [each[:4] for each in every.trace.largest[:5]]


def test_three_steps_are_an_estimate_that_misses_what_comes_late() -> None:
    three = traced("late_long", 3)
    assert three.trace.word == "estimate"
    assert any("as --steps asked" in reason for reason in three.reasons)
    assert three.memory.allocated_bytes < traced("late_long", None).memory.allocated_bytes / 2


def test_what_precedes_the_first_step_counts() -> None:
    before = traced("late_evaluation", 1).memory
    assert before.peak_phase == "load"
    assert before.allocated_bytes > 64 * 256 * 500 * 4


def test_a_script_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_CPU_S", 5)
    found = trace([SCRIPT, "no_end"])
    assert found.trace.steps, "one at least"
    assert (found.trace.finished, found.trace.word) == (False, "estimate")
    assert any("took too long" in reason for reason in found.reasons)


def test_a_script_that_fails_without_gradients_is_traced_whole() -> None:
    found = trace([SCRIPT, "reads_stub"])
    assert (found.trace.steps, found.trace.replayed_steps, found.trace.finished) == (6, 0, True)
    assert any("fails where calls of the model are skipped" in each for each in found.assumptions)
