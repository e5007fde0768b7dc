"""Whole jobs of the Trainer and of TRL with varying lengths on an H200: the order of their batches, their memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

import pytest

from tunecast.job import job_from_dict
from tunecast.job.lengths import sample_lengths
from tunecast.predict.batches import batches_of
from tunecast.predict.engines import prediction

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from job_sets import CAPACITIES, SETS, TRACED  # noqa: E402

RUNS = [json.loads(line) for line in (BENCHMARKS / "data" / "job_runs_dev.jsonl").read_text("utf-8").splitlines()]
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


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["id"])
def test_batches_came_in_the_order_that_was_told(run):
    job = JOBS[run["id"]]
    told = batches_of(job, sample_lengths(job.data), most_steps=1000)
    assert told.known
    assert len(told.steps) == run["steps"]
    trained = [(rows, length) for rows, length, _, evaluates in run["batches"] if not evaluates]
    assert [(micro.rows, micro.length) for step in told.steps for micro in step] == trained


def test_memory():
    """Of sft-qlora, the one that is farther off, TRL's head takes fewer rows than there are: those of padding have no
    label, and are counted."""
    told = {run["id"]: prediction(JOBS[run["id"]]) for run in RUNS}
    device = {run["id"]: told[run["id"]].memory.device_bytes / run["device_bytes"] - 1 for run in RUNS}
    allocated = {run["id"]: told[run["id"]].memory.allocated_bytes / run["allocated_bytes"] - 1 for run in RUNS}
    assert {name for name, error in device.items() if abs(error) > 0.006} == {"sft-qlora"}
    assert abs(device["sft-qlora"]) < 0.03
    assert median(map(abs, device.values())) < 0.001
    assert max(map(abs, allocated.values())) < 0.001


def test_least_capacity():
    [run] = [run for run in RUNS if "least_bytes" in run]
    fails, runs = run["least_bytes"]
    assert fails < prediction(JOBS[run["id"]]).smallest_capacity_bytes <= runs
