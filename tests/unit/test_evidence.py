"""How many measured runs stand behind a prediction, and what is said of them."""

from __future__ import annotations

import pytest

from tunecast.job import job_from_dict
from tunecast.job.names import STACKS
from tunecast.predict.evidence import FEWEST, Runs, Spread, evidence_for, evidence_of, family_of, spread, table
from tunecast.report.evidence import trust


def runs(*errors: float) -> Runs:
    return Runs("time", "card", "family", "stack", "full", "16 bits", "one", errors, ())


def test_median_and_nine_in_ten_by_hand() -> None:
    assert spread([]) == Spread(0)
    assert spread([runs(0.1, 0.4), runs(0.3)]) == Spread(3, 0.3, 0.4)
    assert spread([runs(0.1, 0.3)]) == Spread(2, 0.2, 0.3)
    ten = runs(*(each / 10 for each in range(10)))
    assert spread([ten]) == Spread(10, 0.45, 0.8), "the ninth of ten"


def test_a_card_nobody_measured() -> None:
    found = evidence_for("rtx-5090", "transformers")
    assert not found.validated and found.time_runs == found.memory_runs == 0
    assert found.words == "rtx-5090: no run was measured"
    assert found.like_time.runs > 300 and found.like_memory.runs > 200


def test_a_card_measured_in_8_bits_only_says_nothing_of_16() -> None:
    sixteen = evidence_for("mi300x", "trl", "lora")
    assert not sixteen.validated and sixteen.words == "mi300x: 4 runs, all of training in FP8 or FP4 (MLPerf)"
    eight = evidence_for("mi300x", "nemo", "lora", True, low_precision=True)
    assert eight.validated and eight.time_runs == 4


def test_stacks_of_one_family_share_their_runs() -> None:
    found = {
        stack: evidence_for("a100-sxm-80gb", stack) for stack in ("transformers", "trl", "axolotl", "llama-factory")
    }
    assert {each.time for each in found.values()} == {found["trl"].time}
    assert found["trl"].validated and found["trl"].time_runs == 125 and found["trl"].memory_runs == 125


def test_boards_of_one_chip_are_different_cards() -> None:
    assert evidence_for("a100-sxm-80gb", "trl").validated
    assert not evidence_for("a100-pcie-80gb", "trl").validated
    assert evidence_for("h200-sxm-141gb", "trl").validated
    assert not evidence_for("h200-nvl-141gb", "nemo", None, True, low_precision=True).validated, "two runs"


def test_a_card_timed_with_other_stacks_and_a_stack_timed_on_other_cards() -> None:
    found = evidence_for("h100-sxm-80gb", "trl", "lora")
    assert found.validated and found.time_runs == 0 and found.card_time.runs == 103
    assert "none of this stack (llm-foundry, nemo, fms-fsdp)" in found.words


def test_a_stack_nobody_timed_is_not_validated_on_any_card() -> None:
    found = evidence_for("h200-sxm-141gb", "unsloth", "qlora")
    assert not found.validated and found.memory_runs == 7


def test_a_method_with_kernels_of_its_own_needs_runs_of_its_own() -> None:
    assert evidence_for("h100-sxm-80gb", "torchtitan", "lora", True).validated
    assert not evidence_for("h100-sxm-80gb", "torchtitan", "qlora", True).validated


def test_several_cards_need_links_and_a_stack_that_were_timed() -> None:
    """torchtune: five steps of one A100, none of several. The H200: alone with transformers, several with MLPerf."""
    assert evidence_for("a100-sxm-80gb", "torchtune").validated
    assert not evidence_for("a100-sxm-80gb", "torchtune", "full", True).validated
    found = evidence_for("h200-sxm-141gb", "transformers", "full", True)
    assert found.validated and found.time_runs == 0 and "none on several cards" in found.words


def test_of_a_job() -> None:
    job = job_from_dict({"model": "llama-3.1-8b", "method": "qlora", "stack": "trl", "seq_len": 512,
                         "hardware": {"gpu": "a100-sxm-80gb", "gpus": 2}, "parallel": {"data": "ddp"}})  # fmt: skip
    assert evidence_of(job, "a100-sxm-80gb") == evidence_for("a100-sxm-80gb", "trl", "qlora", True)


@pytest.mark.parametrize("stack", STACKS)
def test_what_is_validated_was_timed(stack: str) -> None:
    for name in {line.card for line in table()} | {"l4"}:
        for several in (False, True):
            found = evidence_for(name, stack, None, several)
            assert found.words.startswith(f"{name}: ")
            assert not found.validated or found.card_time.runs >= FEWEST


def test_a_family_is_known_by_its_stacks() -> None:
    assert family_of("axolotl") == "accelerate" and family_of("litgpt") == "litgpt"


def test_trust_of_what_was_measured_and_of_what_was_not() -> None:
    """The middle of the errors, and what nine in ten are within, of the runs that are most alike."""
    measured = evidence_for("a100-sxm-80gb", "trl")
    time, memory = measured.time, measured.memory
    assert time.median and time.p90 and memory.p90 is not None
    told = trust(measured)
    assert told.startswith("A100 SXM 80 GB: peak in use ± 0.0 % (9 in 10 of 125 runs within ")
    assert told.endswith(f", time ± {time.median:.0%} (9 in 10 of 125 runs within {time.p90:.0%})".replace("%", " %"))
    assert "time" not in trust(measured, timed=False)
    told = trust(evidence_for("rtx-5090", "trl"))
    assert told.startswith("RTX 5090: not measured; like cases: peak in use ± 0.0 % (9 in 10 of ")
    assert "runs on other GPUs within" in told
    assert "peak in use never measured" in trust(evidence_for("l4", "nemo"))


def test_trust_of_a_card_timed_with_other_jobs() -> None:
    assert "103 runs of other jobs within" in trust(evidence_for("h100-sxm-80gb", "trl", "lora"))
    assert trust(evidence_for("h200-sxm-141gb", "unsloth", "qlora")).startswith("H200 SXM 141 GB: not validated; like")
