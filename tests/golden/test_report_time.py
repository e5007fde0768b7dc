"""The page of predicted times is what the committed results say, and they cover every row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import figures  # noqa: E402
import report_time  # noqa: E402
import scaling  # noqa: E402
import sharded_memory  # noqa: E402
import time_promises  # noqa: E402
import timing  # noqa: E402

RESULTS = {
    "time_public.json": [row["id"] for row in timing.rows_of("public_runs.jsonl") if "step_s" in row["measured"]],
    "time_vendor.json": [row["id"] for row in timing.rows_of("vendor_runs.jsonl")],
    "sharded_memory.json": [row["id"] for row in timing.rows_of("public_runs.jsonl") if "memory" in row["measured"]],
}


@pytest.mark.parametrize("path", report_time.written(), ids=lambda path: path.name)
def test_a_page_is_what_the_results_say(path: Path) -> None:
    assert path.read_text() == report_time.written()[path], "run benchmarks/report_time.py"


def test_the_page_of_scaling_is_what_the_results_say() -> None:
    assert scaling.PAGE.read_text() == scaling.page(figures.load("scaling.json")), "run benchmarks/scaling.py"


def test_what_a_family_loses_by_hand() -> None:
    """0.81 measured where 1 was predicted, from 8 to 32 cards: a tenth is lost each of the two times."""
    assert scaling.Family("", "", 8, 32, 0.81, 1.0).missed_per_doubling == pytest.approx(0.1)


def test_families_differ_in_the_number_of_cards_alone() -> None:
    found = scaling.families()
    assert len(found) >= 30
    assert all(family.fewest < family.most and 0.5 < family.measured < 1.5 for family in found)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_covers_every_row_and_refuses_with_a_reason(name: str) -> None:
    rows = figures.load(name)["rows"]
    assert [row["id"] for row in rows] == RESULTS[name]
    for row in rows:
        assert ("tunecast" in row["error"]) != bool(row["said"]["tunecast"].get("refused"))


@pytest.mark.parametrize("name", RESULTS)
def test_no_row_meets_a_fault_of_ours(name: str) -> None:
    faults = [reason for reason in figures.load(name)["refused"] if reason["reason"].startswith("fault: ")]
    assert not faults


MISSED = {
    "whole Trainer programs": "the host's speed, which moves from minute to minute; QLoRA's launches",
    "published, torchtitan, torchao, of something else": "a prototype's fused kernels; B200s held to an unknown power",
    "published: the 80 % range holds for 75%; half of it on others": "few runs of fsdp_qlora on cards nobody timed: "
    "four of eighteen took 26 to 54 % longer than said",
    "rtx-6000-ada": "two runs on a cloud machine whose links nobody states; the cause is not known",
    "rtx-a5000": "two runs on a cloud machine whose links nobody states; the cause is not known",
    "published, megatron:": "two runs; a 405B on 1,024 H100 is said to take 19 % longer, whose overlap nobody states",
    "sharded memory, litgpt": "one of nine: all micro-batches of a step are taken as long as the longest sample is",
}
"""Promises that are not kept, by how they begin, and what is known about it."""


def promise_cases() -> list[Any]:
    told = sharded_memory.promises(figures.load("sharded_memory.json")["groups"])
    all_told = [*time_promises.promises(), *((f"sharded memory, {name}", found, kept) for name, found, kept in told)]
    return [
        pytest.param(
            measured,
            holds,
            id=promise,
            marks=[
                pytest.mark.xfail(strict=True, reason=why) for start, why in MISSED.items() if promise.startswith(start)
            ],
        )
        for promise, measured, holds in all_told
    ]


@pytest.mark.parametrize(("measured", "holds"), promise_cases())
def test_promises_of_time_and_of_many_cards(measured: str, holds: bool) -> None:
    assert holds, measured
