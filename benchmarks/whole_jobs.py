"""Whole jobs of transformers' Trainer and TRL's SFTTrainer with varying lengths: predicted first, then run on a card.

    python benchmarks/whole_jobs.py --predict scored [--calibration FILE]    writes data/job_predictions.jsonl
    python benchmarks/whole_jobs.py --measure scored --out FOLDER            runs them on the card: FOLDER/runs.jsonl
    ... --calibrate-s 20      measures the machine before, and predicts with that: FOLDER/predictions.jsonl
    python benchmarks/whole_jobs.py --compare data/job_runs_dev.jsonl        predicted, now, beside measured
    python benchmarks/whole_jobs.py --compare RUNS --predictions FILE        what was predicted then
    python benchmarks/whole_jobs.py --measure development --small --cpu --out FOLDER    tries it out without a card

Every job is a process of its own, forked from one that has imported torch and transformers. `job_sets.py` has the jobs.
Packages the card's machine lacks may lie on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # else asking for a card spoils the fork
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from job_run import BNB_PATHS, answer, needs_bitsandbytes, write_checkpoint  # noqa: E402
from job_sets import CAPACITIES, SETS, TRACED, Case  # noqa: E402

MEASURE = HERE.parent / "src" / "tunecast" / "learn" / "measure.py"
PROBES = 3
JOB_S = 90.0
PREDICTIONS = HERE / "data" / "job_predictions.jsonl"
NEAR = {"device": 0.02, "least": 0.015, "time": 0.10}
"""How near predictions should be."""


# ------------------------------------------------------------------------------------------------------- measurement


class Bench:
    def __init__(self, out: Path, folder: Path, small: bool, cpu: bool, deadline: float) -> None:
        self.out, self.folder, self.small, self.cpu, self.deadline = out, folder, small, cpu, deadline
        self.fork = multiprocessing.get_context("fork")

    def run(self, case: Case, capacity_bytes: int | None = None, traced: bool = False) -> dict[str, Any]:
        write_checkpoint(case["job"]["model"], self.folder, self.small)
        answers, began = self.fork.Queue(), time.monotonic()
        child = self.fork.Process(
            target=answer, args=(case, self.folder, self.small, self.cpu, capacity_bytes, traced, answers)
        )
        child.start()
        found: dict[str, Any] = {"id": case["id"], "completed": False, "error": f"no answer within {JOB_S:.0f} s"}
        while time.monotonic() - began < JOB_S:
            try:
                found = answers.get(timeout=0.5)
                break
            except Exception:
                if not child.is_alive() and answers.empty():
                    found["error"] = f"died with {child.exitcode}"
                    break
        child.join(10)
        if child.is_alive():
            child.kill()
        return {**found, "process_s": time.monotonic() - began}

    def write(self, row: dict[str, Any]) -> None:
        if events := row.pop("events", None):
            with gzip.open(self.out / "events.jsonl.gz", "at") as file:
                file.write(json.dumps({"id": row["id"], "events": events}) + "\n")
        with (self.out / "runs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        shown = {key: row.get(key) for key in ("allocated_bytes", "reserved_bytes", "steps", "least_bytes")}
        print(
            row["id"], round(row["process_s"], 1), shown, row.get("phases_s"), row.get("error", "")[-900:], flush=True
        )

    def least(self, case: Case) -> dict[str, Any]:
        """Between what tensors held and what torch reserved without a limit lies the least that runs: bisected. Where
        it was predicted (data/job_predictions.jsonl), what lies `NEAR` that to either side is tried first."""
        began = time.monotonic()
        found = self.run(case)
        if not found["completed"] or self.cpu:
            return found
        fails, runs = found["allocated_bytes"], found["reserved_bytes"]
        said = predicted_least(case["id"])
        first = [] if said is None else [int(said * (1 - NEAR["least"])), int(said * (1 + NEAR["least"]))]
        probes = []
        while len(probes) < PROBES and time.monotonic() < self.deadline:
            middle = (fails + runs) // 2
            while first:
                if fails < (tried := first.pop(0)) < runs:
                    middle = tried
                    break
            probe = self.run(case, middle)
            probes.append([middle, probe["completed"], probe.get("retries"), round(probe["process_s"], 1)])
            if probe["completed"]:
                runs = middle
            elif probe.get("oom"):
                fails = middle
            else:
                probes[-1].append(probe.get("error"))
                break
        return {**found, "least_bytes": [fails, runs], "probes": probes, "process_s": time.monotonic() - began}


def predicted_least(name: str) -> int | None:
    if not PREDICTIONS.exists():
        return None
    rows = map(json.loads, PREDICTIONS.read_text("utf-8").splitlines())
    return next((row["smallest_capacity_bytes"] for row in rows if row["id"] == name), None)


def measure(name: str, out: Path, only: list[str], small: bool, cpu: bool, limit_s: float, calibrate_s: float) -> None:
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    if calibrate_s and not cpu:
        given = [sys.executable, str(MEASURE), "--seconds", str(calibrate_s)]
        said = subprocess.run(given, capture_output=True, text=True, check=False, timeout=calibrate_s + 60)
        (out / "calibration.json").write_text(said.stdout or said.stderr, "utf-8")
        print("calibrated", round(time.monotonic() - began, 1), flush=True)
        with multiprocessing.get_context("spawn").Pool(len(SETS[name])) as pool:  # said before any of them runs
            told = pool.map(partial(predicted_row, calibration=out / "calibration.json"), SETS[name])
        lines = [json.dumps({"set": name, "kind": "whole", **row}) + "\n" for row in told]
        (out / "predictions.jsonl").write_text("".join(lines), "utf-8")
        print("predicted", round(time.monotonic() - began, 1), flush=True)
    sys.path[:] = [path for path in sys.path if path not in BNB_PATHS]
    import accelerate  # noqa: F401  imported before the fork, so that each job starts in a moment
    import datasets  # noqa: F401
    import torch
    import transformers.modeling_utils

    kinds = (("least", CAPACITIES), ("whole", SETS), ("traced", TRACED))
    cases = [(case, kind) for kind, sets in kinds for case in sets[name] if not only or case["id"] in only]
    cases.sort(key=lambda each: not needs_bitsandbytes(each[0]))
    ready = False
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(out, Path(folder), small, cpu, began + limit_s)
        for case, kind in cases:
            if not ready and not needs_bitsandbytes(case):  # PEFT looks for bitsandbytes once, and waking it wakes CUDA
                ready = True
                import transformers.trainer  # noqa: F401
                import trl  # noqa: F401

                print("imports", round(time.monotonic() - began, 1), torch.cuda.is_initialized(), flush=True)
            if time.monotonic() > bench.deadline:
                print("out of time before", case["id"], flush=True)
                break
            found = bench.least(case) if kind == "least" else bench.run(case, traced=kind == "traced")
            bench.write({**found, "set": name, "kind": kind})
    print("ended", round(time.monotonic() - began, 1), flush=True)


# -------------------------------------------------------------------------------------------------------- prediction


def predict(name: str, out: Path, calibration: Path | None) -> None:
    """What is said of a set before it runs, with and without a calibration."""
    with out.open("x", encoding="utf-8") as file:  # what was predicted before a run is never written again
        for kind, sets in (("whole", SETS), ("least", CAPACITIES)):
            for case in sets[name]:
                for known in (None,) if calibration is None else (None, calibration):
                    row = {"set": name, "kind": kind, **predicted_row(case, known)}
                    file.write(json.dumps(row) + "\n")
                    print(row["id"], row["calibrated"], row["memory"]["device_bytes"], row["time"], flush=True)


def predicted_row(case: Case, calibration: Path | None = None) -> dict[str, Any]:
    from tunecast.job import job_from_dict
    from tunecast.prediction.engines import predict
    from tunecast.prediction.time.calibration import calibration_from

    found = None if calibration is None else json.loads(calibration.read_text("utf-8"))
    own = None if found is None else calibration_from(found, found.get("measured", ""))
    said = predict(job_from_dict(case["job"]), timed=True, calibration=own).to_dict()
    kept = ("memory", "smallest_capacity_bytes", "time")
    return {"id": case["id"], "calibrated": own is not None, **{key: said[key] for key in kept}}


# -------------------------------------------------------------------------------------------------------- comparison

TOGETHER = {"training": ("training", "first_step", "new_lengths")}


def compare(runs: Path, predictions: Path | None, only: list[str]) -> None:
    """A block a job, and at the end how many are as near as they should be."""
    ran = [row for row in map(json.loads, runs.read_text("utf-8").splitlines()) if row.get("completed")]
    told: dict[str, list[dict[str, Any]]] = {}
    if predictions is not None:
        for row in map(json.loads, predictions.read_text("utf-8").splitlines()):
            told.setdefault(row["id"], []).append(row)
    cases = {case["id"]: case for sets in (SETS, CAPACITIES, TRACED) for each in sets.values() for case in each}
    scores: dict[str, list[float]] = {}
    held: dict[str, list[bool]] = {}

    def line(kind: str, said: float, took: float, bounds: Any = None, unit: float = 2**30) -> None:
        error = said / took - 1
        scores.setdefault(kind, []).append(error)
        inside = ""
        if bounds is not None:
            held.setdefault(kind, []).append(bounds[0] <= took <= bounds[1])
            inside = "inside" if held[kind][-1] else f"OUTSIDE {bounds[0] / unit:.2f} to {bounds[1] / unit:.2f}"
        print(f"    {kind:<22} {said / unit:9.3f} {took / unit:9.3f}  {error:+8.2%}  {inside}")

    for row in ran:
        if row["id"] not in cases or (only and row["id"] not in only):
            continue
        said_of = told.get(row["id"]) if predictions is not None else [predicted_row(cases[row["id"]])]
        for said in said_of or ():
            print(f"{row['id']} {'calibrated' if said['calibrated'] else ''}")
            if not said["calibrated"]:
                memory = said["memory"]
                for kind in ("allocated", "reserved", "device"):
                    line(kind, memory[f"{kind}_bytes"], row[f"{kind}_bytes"], memory["range_bytes"][kind])
                if "least_bytes" in row:
                    fails, runs_with = row["least_bytes"]
                    line("least", said["smallest_capacity_bytes"], (fails + runs_with) / 2)
            if row.get("kind", "whole") == "whole" and said["time"] is not None:
                _times(said, row, line)
    for kind, errors in scores.items():
        near = "" if kind not in NEAR else f", {sum(abs(e) <= NEAR[kind] for e in errors)} within {NEAR[kind]:.1%}"
        middle = sorted(map(abs, errors))[len(errors) // 2]
        inside = "" if kind not in held else f", {sum(held[kind])} of {len(held[kind])} inside their range"
        print(f"{kind:<26} {len(errors)} jobs, median {middle:.2%}, worst {max(errors, key=abs):+.2%}{near}{inside}")


def _times(said: dict[str, Any], row: dict[str, Any], line: Any) -> None:
    """By phase, and the whole program but for its start, which was shared: all jobs were forked from one program."""
    phases, took = said["time"]["phases_s"], row["phases_s"]
    saved = took.get("final_save", 0.0) > 1e-3
    suffix = " calibrated" if said["calibrated"] else ""
    for name in ("load", "training", "evaluation", "checkpoints", *(("final_save",) if saved else ())):
        part = sum(phases[each] for each in TOGETHER.get(name, (name,)))
        if took.get(name, 0.0) > 1e-3:
            line(name + suffix, part, took[name], unit=1.0)
    told_s, took_s, bounds = seconds_of(said, row)
    line("time" + suffix, told_s, took_s, bounds, 1.0)


def seconds_of(said: dict[str, Any], row: dict[str, Any]) -> tuple[float, float, list[float]]:
    """Of the whole program but for its start, and for the last save where the job made none: said, measured, range."""
    phases, took = said["time"]["phases_s"], row["phases_s"]
    saved = took.get("final_save", 0.0) > 1e-3
    left_out = phases["start"] + (0.0 if saved else phases["final_save"])
    parts = ("load", "construction", "training", "evaluation", "checkpoints", "final_save")
    bounds = [end - left_out for end in said["time"]["total_range_s"]]
    return said["time"]["total_s"] - left_out, sum(took.get(name, 0.0) for name in parts), bounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--predict", choices=SETS)
    what.add_argument("--measure", choices=SETS)
    what.add_argument("--compare", type=Path, metavar="RUNS")
    parser.add_argument("--predictions", type=Path)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--out", type=Path)
    for flag in ("--small", "--cpu"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--only", nargs="*", default=[], metavar="ID")
    parser.add_argument("--limit-s", type=float, default=500.0)
    parser.add_argument("--calibrate-s", type=float, default=0.0)
    given = parser.parse_args()
    if given.predict:
        predict(given.predict, given.out or PREDICTIONS, given.calibration)
    elif given.measure:
        measure(given.measure, given.out, given.only, given.small, given.cpu, given.limit_s, given.calibrate_s)
    else:
        compare(given.compare, given.predictions, given.only)


if __name__ == "__main__":
    main()
