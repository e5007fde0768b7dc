"""Predict the generated jobs and write the predictions down, to be committed before anything is measured.

python benchmarks/predict.py --python ENV/bin/python        writes data/generated_predictions.jsonl
python benchmarks/predict.py --engine analytic              writes data/closed_predictions.jsonl
python benchmarks/predict.py --edge edge2                   writes data/edge2_predictions.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from generate import CLOSED_COUNT, CLOSED_SEED, EDGE_DRAWS, bundled, drawn, edge_jobs  # noqa: E402
from memory import H200_CAPACITY_BYTES, commit  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job import job_from_dict  # noqa: E402
from tunecast.prediction.memory.allocator import AllocatorSettings, takes_oldest_segment_first  # noqa: E402
from tunecast.prediction.memory.replay import replay, rows_of  # noqa: E402
from tunecast.tape.build.job_runs import fold_job  # noqa: E402
from tunecast.tape.card import Card  # noqa: E402
from tunecast.tape.fold import Folded  # noqa: E402
from tunecast.tape.op import Tape  # noqa: E402
from tunecast.tape.trace.engine import trace_job  # noqa: E402


def predicted(values: dict[str, Any], config: dict[str, Any], python: str, made_at: str) -> dict[str, Any]:
    """By the traced engine if a `python` is given."""
    row: dict[str, Any] = {"job": values, "commit": made_at}
    job = job_from_dict(values)
    tape: Tape | Folded
    try:
        if python:
            tape = trace_job(job, config, Card(), python=python)
        else:
            row["config"] = config
            tape = fold_job(job, config, Card())
    except TunecastError as error:
        return row | {"refused": error.message}
    settings = AllocatorSettings(
        expandable_segments=job.allocator == "expandable_segments",
        oldest_segment_first=takes_oldest_segment_first(tape.versions["torch"]),
    )
    steps = rows_of(tape)
    free, real = replay(steps, settings), replay(steps, settings, H200_CAPACITY_BYTES)
    seen = real if real.completed else free
    row["predicted"] = {
        "completed": real.completed,
        "model_bytes": seen.model_bytes,
        "allocated_bytes": seen.allocated_bytes,
        "reserved_bytes": seen.reserved_bytes,
    }
    return row | {"guesses": list(tape.guesses)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch and the measured packages")
    parser.add_argument("--engine", choices=("traced", "analytic"), default="traced")
    parser.add_argument("--edge", choices=EDGE_DRAWS, help="the closed form, over the newest architectures")
    parser.add_argument("--jobs", type=int, default=1, help="tapes at once; each takes two cores and 2 GiB")
    parser.add_argument("--commit", help="the commit this is a copy of, where git cannot say")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.edge:
        name, (jobs, models) = options.edge, edge_jobs(options.edge)
    elif options.engine == "analytic":
        name, models = "closed", bundled()
        jobs = drawn(CLOSED_COUNT, CLOSED_SEED, "closed", models)
    else:
        name, jobs = "generated", drawn()
        models = json.loads((HERE / "data" / "generated_models.json").read_text())
    python = options.python if name == "generated" else ""
    path = options.out or HERE / "data" / f"{name}_predictions.jsonl"
    configs = [models[job["model"]]["config"] for job in jobs]
    with path.open("w") as out, ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(predicted, jobs, configs, repeat(python), repeat(options.commit or commit())):
            out.write(json.dumps(row) + "\n")
            print(row["job"]["id"], row.get("predicted") or row.get("refused"), flush=True)


if __name__ == "__main__":
    main()
