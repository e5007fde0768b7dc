"""Preparing the data, on paper, and held against the runs it is measured by."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tunecast.job import Job, job_from_dict
from tunecast.prediction.data.lengths import epoch_of
from tunecast.prediction.data.preparation import TEXT_BYTES_PER_TOKEN, preparation_s

RUNS = Path(__file__).parents[2] / "benchmarks" / "data" / "preparation.jsonl"


def job(data: dict[str, Any], **more: Any) -> Job:
    fields = {"model": "llama-3.2-1b", "seq_len": 100, "hardware": {"download_bytes_per_s": None}, **more}
    return job_from_dict({**fields, "data": {"epochs": 3, **data}})


def prepared(made: Job) -> tuple[float, float, float]:
    return preparation_s(made, epoch_of(made))


def test_every_token_once_whatever_the_epochs():
    assert prepared(job({"tokens": 33_000_000})) == pytest.approx((100, 33e6 / 640e3, 33e6 / 190e3))
    assert prepared(job({"tokens": 33_000_000, "epochs": 1})) == prepared(job({"tokens": 33_000_000}))


def test_processes_share_the_work_and_the_text_arrives_first():
    arriving = job({"tokens": 33_000_000, "num_proc": 4}, hardware={"download_bytes_per_s": 1_000_000})
    assert prepared(arriving)[0] == pytest.approx(33e6 * TEXT_BYTES_PER_TOKEN / 1e6 + 25)


def test_rows_to_evaluate_on_are_prepared_where_there_is_an_evaluation():
    data = {"samples": 1000, "eval_samples": 500}
    assert prepared(job(data))[0] == pytest.approx(100_000 / 330_000)
    assert prepared(job(data, run={"eval_strategy": "epoch"}))[0] == pytest.approx(150_000 / 330_000)


@pytest.mark.parametrize(
    "made",
    [
        job({"tokens": 33_000_000, "prepared": True}),
        job({"tokens": 33_000_000}, stack="torchtune"),
        job({}, run={"max_steps": 100}),
    ],
    ids=["said", "stack", "no amount"],
)
def test_nothing_is_added(made):
    assert prepared(made) == (0, 0, 0)


def test_the_range_holds_the_measured_runs():
    runs = [json.loads(line) for line in RUNS.read_text("utf-8").splitlines()]
    usual = [run for run in runs if run["way"] == "trl"]
    held = 0
    for run in runs:
        _, low, high = prepared(job({"tokens": run["tokens"]}))
        held += low <= run["cpu_s"] <= high
    assert held >= 0.9 * len(runs)
    assert median(prepared(job({"tokens": run["tokens"]}))[0] / run["cpu_s"] for run in usual) == pytest.approx(
        1, abs=0.1
    )
    assert median(run["bytes"] / run["tokens"] for run in runs) == pytest.approx(TEXT_BYTES_PER_TOKEN, rel=0.02)
