"""Whole jobs of the Trainer and of TRL with varying lengths on an H200: the order of their batches, their memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.job import job_from_dict
from tunecast.job.lengths import sample_lengths
from tunecast.prediction.data.batches import batches_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import report_jobs  # noqa: E402
from job_sets import CAPACITIES, SETS, TRACED  # noqa: E402


def runs_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BENCHMARKS / "data" / name).read_text("utf-8").splitlines()]


RUNS, SCORED = runs_of("job_runs_dev.jsonl"), runs_of("job_runs.jsonl")
JOBS = {
    case["id"]: job_from_dict(case["job"])
    for sets in (SETS, CAPACITIES, TRACED)
    for each in sets.values()
    for case in each
}


def test_sets_share_no_job():
    names = [case["id"] for sets in (SETS, CAPACITIES) for each in sets.values() for case in each]
    lengths = [tuple(JOBS[name].data.lengths) for name in names]
    assert len(names) == len(set(names)) == len(set(lengths)) >= 24


@pytest.mark.parametrize("run", [*RUNS, *SCORED], ids=lambda run: run["id"])
def test_batches_came_in_the_order_that_was_told(run):
    job = JOBS[run["id"]]
    told = batches_of(job, sample_lengths(job.data), most_steps=1000)
    assert told.known
    assert len(told.steps) == run["steps"]
    trained = [(rows, length) for rows, length, _, evaluates in run["batches"] if not evaluates]
    assert [(micro.rows, micro.length) for step in told.steps for micro in step] == trained


def test_memory():
    told = {run["id"]: predict(JOBS[run["id"]]).memory for run in RUNS}
    for kind, most in (("allocated", 0.001), ("reserved", 0.001), ("device", 0.008)):
        errors = [abs(getattr(told[run["id"]], f"{kind}_bytes") / run[f"{kind}_bytes"] - 1) for run in RUNS]
        assert max(errors) < most and median(errors) < 0.001, kind


def test_least_capacity():
    [run] = [run for run in RUNS if "least_bytes" in run]
    fails, runs = run["least_bytes"]
    assert fails < predict(JOBS[run["id"]]).smallest_capacity_bytes <= runs


def test_memory_that_was_told_before():
    """Two are farther off: of full-grouped-3b a segment is asked for where the card found room, of least-sft-full the
    card asked for one where there is room."""
    jobs = report_jobs.compared()
    assert len(jobs) == 14
    assert max(abs(job.allocated) for job in jobs) < 0.0005
    assert {job.id for job in jobs if abs(job.device) > 0.006} == {"full-grouped-3b", "least-sft-full"}
    assert max(abs(job.device) for job in jobs) < 0.07


def test_time_that_was_told_before():
    """Not within 10 % for four of five, which is promised and missed (docs/accuracy.md): the host's speed, first steps
    of TRL and of QLoRA, and loading from files nothing had read."""
    timed = [job for job in report_jobs.compared() if job.total is not None]
    assert len(timed) == 11 and all(job.inside for job in timed)
    assert median(abs(job.training) for job in timed) < 0.10
    assert max(abs(job.total) for job in timed) < 0.20


@pytest.mark.parametrize("name", ["full-qwen", "sft-wrapped-sgd"])
def test_what_is_told_now_is_what_was_told_before(name):
    (before,) = (row for row in runs_of("job_predictions.jsonl") if row["id"] == name)
    now = predict(JOBS[name]).memory
    assert now.device_bytes == pytest.approx(before["memory"]["device_bytes"], rel=1e-3)
