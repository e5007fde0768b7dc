"""Whole jobs with varying lengths, predicted first: their section of docs/accuracy.md, and what is promised of them."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import table  # noqa: E402
from job_sets import CAPACITIES, SETS  # noqa: E402
from whole_jobs import NEAR, TOGETHER, seconds_of  # noqa: E402

Row = dict[str, Any]
Promise = tuple[str, str, bool]
TIMED, OF_TEN = "whole", 0.8
"""Of the jobs that were timed, how many should be near."""


class Compared(NamedTuple):
    """A job that ran, and how far off what was said of it before is."""

    id: str
    about: str
    allocated: float
    reserved: float
    device: float
    device_gib: float
    least: tuple[float, float] | None
    """Of the capacities between which the least lies."""
    training: float | None
    total: float | None
    total_s: float | None
    calibrated: float | None
    """`total` with what `tunecast calibrate` had measured of the machine."""
    inside: bool | None
    """Whether the time lies in its 80 % range."""


def compared() -> list[Compared]:
    said, calibrated = (_by_id(name) for name in ("job_predictions.jsonl", "job_predictions_calibrated.jsonl"))
    cases = {case["id"]: case["job"] for case in (*SETS["scored"], *CAPACITIES["scored"])}
    return [
        _compared(row, cases[name], said[name], calibrated.get(name)) for name, row in _by_id("job_runs.jsonl").items()
    ]


def _by_id(name: str) -> dict[str, Row]:
    lines = (HERE / "data" / name).read_text("utf-8").splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def _compared(row: Row, job: Row, said: Row, calibrated: Row | None) -> Compared:
    memory = said["memory"]
    off = {kind: memory[f"{kind}_bytes"] / row[f"{kind}_bytes"] - 1 for kind in ("allocated", "reserved", "device")}
    least = None
    if "least_bytes" in row:
        fails, runs = row["least_bytes"]
        least = (said["smallest_capacity_bytes"] / runs - 1, said["smallest_capacity_bytes"] / fails - 1)
    training = total = total_s = own = inside = None
    if row["kind"] == TIMED:
        phases = said["time"]["phases_s"]
        training = sum(phases[each] for each in TOGETHER["training"]) / row["phases_s"]["training"] - 1
        told_s, total_s, bounds = seconds_of(said, row)
        total, inside = told_s / total_s - 1, bounds[0] <= total_s <= bounds[1]
        own = None if calibrated is None else seconds_of(calibrated, row)[0] / total_s - 1
    return Compared(
        row["id"], _about(job), off["allocated"], off["reserved"], off["device"], row["device_bytes"] / 2**30, least,
        training, total, total_s, own, inside,
    )  # fmt: skip


def _about(job: Row) -> str:
    data, run = job["data"], job["run"]
    parts = [
        job["model"], job["method"], f"{job['micro_batch']} x {job.get('grad_accum', 1)} of up to {job['seq_len']}",
        job.get("optimizer", ""), "recomputed" if job["gradient_checkpointing"] else "",
        "TRL" if job.get("stack") == "trl" else "", "grouped" if data.get("group_by_length") else "",
        f"packed {data.get('packing_strategy', 'bfd')}" if data.get("packing") else "",
        "expandable" if "allocator" in job else "", "evaluated" if "eval_steps" in run else "",
    ]  # fmt: skip
    return " ".join(part for part in parts if part)


def promises() -> list[Promise]:
    jobs = compared()
    device = sorted(abs(job.device) for job in jobs)
    near = sum(error <= NEAR["device"] for error in device)
    least = [job.least for job in jobs if job.least is not None]
    meets = sum(low <= NEAR["least"] and high >= -NEAR["least"] for low, high in least)
    made = [
        (
            f"device memory of {len(jobs)} jobs with varying lengths, predicted first: within {NEAR['device']:.0%}",
            f"{near} of {len(jobs)}, median {statistics.median(device):.2%}, worst {device[-1]:.1%}",
            near == len(jobs),
        ),
        (
            f"least capacity of {len(least)} of them: within {NEAR['least']:.1%} of the bisected interval",
            f"{meets} of {len(least)}",
            meets == len(least),
        ),
    ]
    for name, errors in (
        ("", [abs(job.total) for job in jobs if job.total is not None]),
        (", with the machine's calibration", [abs(job.calibrated) for job in jobs if job.calibrated is not None]),
        (", of training alone", [abs(job.training) for job in jobs if job.training is not None]),
    ):
        close = sum(error <= NEAR["time"] for error in errors)
        told = f"{close} of {len(errors)}, median {statistics.median(errors):.1%}, worst {max(errors):.1%}"
        promise = f"time of {len(errors)} of them{name}: within {NEAR['time']:.0%} for {OF_TEN:.0%}"
        made.append((promise, told, close >= OF_TEN * len(errors)))
    return made


def jobs_section() -> list[str]:
    jobs = compared()
    rows = [
        [
            job.id, job.about, f"{job.device_gib:.2f}", f"{job.allocated:+.2%}", f"{job.reserved:+.2%}",
            f"{job.device:+.2%}", "" if job.least is None else f"{job.least[0]:+.1%} to {job.least[1]:+.1%}",
            "" if job.total_s is None else f"{job.total_s:.1f}", _percent(job.training), _percent(job.total),
            _percent(job.calibrated),
        ]
        for job in jobs
    ]  # fmt: skip
    timed = [job for job in jobs if job.inside is not None]
    held = sum(bool(job.inside) for job in timed)
    return [
        "### Whole jobs",
        "",
        f"{len(jobs)} jobs of transformers' Trainer and TRL's SFTTrainer with samples of many lengths, predicted and "
        "committed (`benchmarks/data/job_predictions.jsonl`) before they ran on an H200, each with an empty cache of "
        "compiled kernels, as on a machine that was just rented. The order of their batches was foreseen in all of "
        "them. Peaks are those of all of `train()`. Time is from loading to the end of training, without the start of "
        "Python; weights come from files of zeros that nothing had read before, which loads slower than what was just "
        f"downloaded. It lies inside its 80 % range in {held} of {len(timed)}. Repeat with `python "
        "benchmarks/whole_jobs.py --compare benchmarks/data/job_runs.jsonl --predictions "
        "benchmarks/data/job_predictions.jsonl`.",
        "",
        *table(
            ["job", "what", "device GiB", "allocated", "reserved", "device", "least capacity", "seconds", "training",
             "time", "calibrated"],
            rows,
        ),
    ]  # fmt: skip


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"
