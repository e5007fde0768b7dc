"""The whole run of a script, most of it skipped, is the run of which every step was traced, to the byte."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tunecast.door.trace import ScriptTrace, trace
from tunecast.prediction.script_run import MASKED_ATTENTION
from tunecast.tape.trace import run
from tunecast.tape.trace.limits import TraceLimits

SCRIPT = str(Path(__file__).parent / "scripts" / "whole_runs.py")
LORA = str(Path(__file__).parent / "scripts" / "lora_lengths.py")
TINY = str(Path(__file__).parents[2] / "examples" / "models" / "tiny-llama" / "config.json")


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
        ("scaler", 10),
        ("accumulation", 4),
        ("loss_module", 8),
        ("unfreezing", 5),
        ("zeros", 3),
        ("without_zero_grad", 0),
    ],
)
def test_it_is_as_if_all_were_traced(name: str, replayed: int) -> None:
    compare(traced(name, None), traced(name, 0), replayed)


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_so_it_is_of_one_process_among_several(name: str) -> None:
    command = ["torchrun", "--nproc-per-node", "2", SCRIPT, name]
    compare_memory(trace(command), trace(command, steps=0), 15)


def compare(whole: ScriptTrace, every: ScriptTrace, replayed: int) -> None:
    compare_memory(whole, every, replayed)
    assert phases(whole) == phases(every)
    assert [each[:4] for each in whole.trace.largest[:5]] == [each[:4] for each in every.trace.largest[:5]]


def compare_memory(whole: ScriptTrace, every: ScriptTrace, replayed: int, doubts: tuple[str, ...] = ()) -> None:
    """Of what follows a skipped backward pass, the loop's own lines may be told as `other` rather than as `clip`.
    `doubts`: why neither is exact."""
    assert (whole.trace.steps, whole.trace.finished) == (every.trace.steps, True)
    assert whole.trace.replayed_steps >= replayed
    assert every.trace.replayed_steps == 0
    assert whole.memory.allocated_bytes == every.memory.allocated_bytes
    assert whole.memory.reserved_bytes == every.memory.reserved_bytes
    assert whole.memory.breakdown_bytes == every.memory.breakdown_bytes
    assert whole.smallest_capacity_bytes == every.smallest_capacity_bytes
    assert {**phases(whole), "other": 0} == {**phases(every), "other": 0}
    word = "estimate" if doubts else "exact"
    assert (whole.trace.word, every.trace.word) == (word, word)
    for found in (whole, every):
        assert not doubts or tuple(each for each in found.reasons if "no run was measured with" not in each) == doubts


@pytest.mark.parametrize(
    ("model", "steps", "most_traced"),
    [
        pytest.param("tiny-llama", 40, 15, marks=pytest.mark.slow),
        pytest.param("tiny-llama", 500, 10, marks=pytest.mark.long),
        pytest.param("meta-llama/Llama-3.1-8B", 40, 15, marks=pytest.mark.long),
    ],
)
def test_lora_over_random_lengths(model: str, steps: int, most_traced: int) -> None:
    """The Trainer's own loop; every batch has another length, and padded rows a mask."""
    command, patient = [LORA, model, str(steps)], TraceLimits(seconds=7200)
    whole, every = (trace(command, steps=asked, models=(f"tiny-llama={TINY}",), limits=patient) for asked in (None, 0))
    assert whole.trace.steps == steps
    compare_memory(whole, every, steps - most_traced, (MASKED_ATTENTION,))


def test_the_script_is_told_how_full_the_card_is(capfd: pytest.CaptureFixture[str]) -> None:
    """As the replay has it there, whether steps were skipped or not."""
    answers = []
    for steps in (None, 0):
        found = trace([SCRIPT, "asks"], steps=steps)
        lines = "".join(capfd.readouterr()).splitlines()
        answers.append([tuple(map(int, line.split()[1:])) for line in lines if line.startswith("asked ")])
        context = found.figures.context_bytes
        assert {beside for *_, beside in answers[-1]} == {context}
        _, allocated, reserved, *peaks, _ = answers[-1][9]
        assert peaks == [found.memory.allocated_bytes, found.memory.reserved_bytes]
        assert allocated < peaks[0] and reserved == peaks[1]
        assert answers[-1][10][3] < peaks[0], "reset"
        assert found.trace.replayed_steps == (10 if steps is None else 0)
        assert not any("asks how full" in each for each in found.assumptions)
    assert answers[0] == answers[1]


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
