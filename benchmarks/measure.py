"""Run jobs for real on a CUDA card, each in a process of its own, and write down what torch says it took.

    python benchmarks/measure.py JOBS.jsonl OUT.jsonl [--limit-s 500] [--case-s 60] [--fitting]

JOBS holds lines with a "job" (and anything else, which is carried along). `--fitting`: of predictions, those that are
said to fit, the smallest first. The training run is the one the tracer follows, `tunecast.tape.trace.recipe`, without
the tracer. Packages the card's machine lacks may lie on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))


class Bystander:
    """Stands where the tracer's recorder would: marks the end of loading and the peaks of each step."""

    def __init__(self) -> None:
        self.scopes = self
        self.measured: dict[str, Any] = {"step_s": []}
        self.began = 0.0

    def begin_step(self) -> None:
        import torch

        torch.cuda.synchronize()
        if "model_alloc" not in self.measured:
            self.measured["model_alloc"] = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        else:
            self.measured["step_s"].append(round(time.perf_counter() - self.began, 4))
        self.began = time.perf_counter()


def run(values: dict[str, Any], config: dict[str, Any], answers: Any) -> None:
    os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = (
        f"expandable_segments:{values.get('allocator') == 'expandable_segments'}"
    )
    bystander = Bystander()
    measured = bystander.measured
    try:
        import torch

        from tunecast.job import job_from_dict
        from tunecast.tape.shorten import steps_of
        from tunecast.tape.trace.recipe import train

        job = job_from_dict(values)
        torch.manual_seed(0)
        free, total = torch.cuda.mem_get_info()
        measured["context_bytes"] = total - free
        if job.hardware.capacity_bytes:
            torch.cuda.set_per_process_memory_fraction(job.hardware.capacity_bytes / total)
        train(job, config, steps_of(job), bystander)  # type: ignore[arg-type]
        measured["peak_alloc"] = torch.cuda.max_memory_allocated()
        measured["peak_reserved"] = torch.cuda.max_memory_reserved()
        free, total = torch.cuda.mem_get_info()
        measured |= {"device_used": total - free, "completed": True, "torch": torch.__version__}
    except Exception as error:
        measured |= {
            "completed": False,
            "oom": "OutOfMemory" in type(error).__name__,
            "error": "".join(traceback.format_exception_only(error)).strip()[-700:],
        }
    answers.put(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit-s", type=float, default=500)
    parser.add_argument("--case-s", type=float, default=60)
    parser.add_argument("--fitting", action="store_true")
    options = parser.parse_args()
    import torch  # noqa: F401  imported before the fork, so that each case starts in a moment
    import transformers  # noqa: F401

    models = json.loads((HERE / "data" / "generated_models.json").read_text())
    rows = [json.loads(line) for line in options.jobs.read_text().splitlines()]
    if options.fitting:
        rows = [row for row in rows if "predicted" in row and row["predicted"]["completed"]]
        rows.sort(key=lambda row: row["predicted"]["allocated_bytes"])
    start = time.monotonic()
    fork = multiprocessing.get_context("fork")
    with options.out.open("a") as out:
        for row in rows:
            if time.monotonic() - start > options.limit_s:
                print("out of time before", row["job"]["id"])
                break
            answers = fork.Queue()
            config = row.get("config") or models[row["job"]["model"]]["config"]
            case = fork.Process(target=run, args=(row["job"], config, answers))
            case.start()
            try:
                measured = answers.get(timeout=options.case_s)
            except Exception:
                measured = {"completed": False, "error": f"no answer within {options.case_s} s"}
            case.join(3)
            if case.is_alive():
                case.kill()
            out.write(json.dumps(row | {"measured": measured}) + "\n")
            out.flush()
            print(
                row["job"]["id"],
                {k: measured.get(k) for k in ("completed", "oom", "peak_alloc", "peak_reserved")},
                (measured.get("error") or "")[-200:],
                round(time.monotonic() - start, 1),
                flush=True,
            )


if __name__ == "__main__":
    main()
