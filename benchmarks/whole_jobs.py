"""Whole jobs of transformers' Trainer and TRL's SFTTrainer with varying lengths: predicted first, then run on a card.

    python benchmarks/whole_jobs.py --predict scored [--calibration FILE]    writes data/job_predictions.jsonl
    python benchmarks/whole_jobs.py --measure scored --out FOLDER            runs them on the card: FOLDER/runs.jsonl
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
PROBES = 6
JOB_S = 70.0


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
        """Between what tensors held and what torch reserved without a limit lies the least that runs: bisected."""
        began = time.monotonic()
        found = self.run(case, traced=True)
        if not found["completed"] or self.cpu:
            return found
        fails, runs = found["allocated_bytes"], found["reserved_bytes"]
        probes = []
        while len(probes) < PROBES and time.monotonic() < self.deadline:
            middle = (fails + runs) // 2
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


def measure(name: str, out: Path, only: list[str], small: bool, cpu: bool, limit_s: float, calibrate_s: float) -> None:
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    if calibrate_s and not cpu:
        given = [sys.executable, str(MEASURE), "--seconds", str(calibrate_s)]
        said = subprocess.run(given, capture_output=True, text=True, check=False, timeout=calibrate_s + 60)
        (out / "calibration.json").write_text(said.stdout or said.stderr, "utf-8")
        print("calibrated", round(time.monotonic() - began, 1), flush=True)
    sys.path[:] = [path for path in sys.path if path not in BNB_PATHS]
    import accelerate  # noqa: F401  imported before the fork, so that each job starts in a moment
    import datasets  # noqa: F401
    import torch
    import transformers.modeling_utils  # noqa: F401

    kinds = (("whole", SETS), ("traced", TRACED), ("least", CAPACITIES))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", choices=SETS)
    parser.add_argument("--out", type=Path)
    for flag in ("--small", "--cpu"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--only", nargs="*", default=[], metavar="ID")
    parser.add_argument("--limit-s", type=float, default=500.0)
    parser.add_argument("--calibrate-s", type=float, default=0.0)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.out, given.only, given.small, given.cpu, given.limit_s, given.calibrate_s)


if __name__ == "__main__":
    main()
