"""How many measured runs stand behind a prediction, and what is said of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.job.stacks import STACKS
from tunecast.prediction.evidence import FEWEST, ErrorSpread, Runs, evidence_for, evidence_of, family_of, spread, table
from tunecast.prediction.memory.ranges import Basis
from tunecast.prediction.verdict import Room
from tunecast.report.run.evidence import trust
from tunecast.units import GIB


def runs(*errors: float) -> Runs:
    return Runs("time", "card", "family", "stack", "full", "16 bits", "one", errors, ())


def test_median_and_nine_in_ten_by_hand() -> None:
    assert spread([]) == ErrorSpread(0)
    assert spread([runs(0.1, 0.4), runs(0.3)]) == ErrorSpread(3, 0.3, 0.4)
    assert spread([runs(0.1, 0.3)]) == ErrorSpread(2, 0.2, 0.3)
    ten = runs(*(each / 10 for each in range(10)))
    assert spread([ten]) == ErrorSpread(10, 0.45, 0.8), "the ninth of ten"


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


ROOM = Room(100 * GIB, 97 * GIB, 105 * GIB, 200 * GIB, fits=True)
TIME = SimpleNamespace(low_s=0.9, step_s=1.0, high_s=1.1)


def told(gpu_name: str, stack: str, *, method: str | None = None, guessed: bool = False, time: Any = TIME) -> str:
    measured = gpu_name == "h200-sxm-141gb"
    return trust(evidence_for(gpu_name, stack, method), Basis(stack, measured, guessed), ROOM, time)


def test_trust_says_the_ranges_that_are_printed_and_the_runs_behind_them() -> None:
    runs = evidence_for("a100-sxm-80gb", "transformers").time.runs
    assert told("a100-sxm-80gb", "transformers") == (
        f"A100 SXM 80 GB: memory -3 to +5 % (10 runs on other GPUs), time ± 10 % ({runs} runs)"
    )
    assert told("a100-sxm-80gb", "trl", time=None) == "A100 SXM 80 GB: memory -3 to +5 % (65 runs with trl)"
    assert told("h200-sxm-141gb", "transformers").startswith("H200 SXM 141 GB: memory -3 to +5 % (115 runs), time")


def test_trust_in_what_nobody_measured() -> None:
    assert told("rtx-5090", "transformers").startswith("RTX 5090: not measured; like cases: memory -3 to +5 % (10 runs")
    assert "time ± 10 % (" in told("rtx-5090", "transformers") and told("rtx-5090", "trl").endswith("on other GPUs)")
    assert "part of it is guessed" in told("l4", "transformers", guessed=True)


def test_trust_of_a_card_timed_with_other_jobs() -> None:
    assert "(103 runs of other jobs)" in told("h100-sxm-80gb", "trl", method="lora")
    assert told("h200-sxm-141gb", "unsloth", method="qlora").startswith(
        "H200 SXM 141 GB: no such job was timed on it; like cases: "
    )
