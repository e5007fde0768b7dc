"""Predict the generated jobs and write the predictions down, to be committed before anything is measured.

    python benchmarks/predict.py --python ENV/bin/python        writes data/generated_predictions.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from generate import drawn  # noqa: E402
from memory import H200_CAPACITY_BYTES, commit  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job import job_from_dict  # noqa: E402
from tunecast.predict.allocator import AllocatorSettings, takes_oldest_segment_first  # noqa: E402
from tunecast.predict.memory import program, replay  # noqa: E402
from tunecast.tape.trace.card import Card  # noqa: E402
from tunecast.tape.trace.engine import trace_job  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch and the measured packages")
    parser.add_argument("--out", type=Path, default=HERE / "data" / "generated_predictions.jsonl")
    options = parser.parse_args()
    models = json.loads((HERE / "data" / "generated_models.json").read_text())
    made_at = commit()
    with options.out.open("w") as out:
        for values in drawn():
            job = job_from_dict(values)
            start = time.perf_counter()
            row = {"job": values, "commit": made_at}
            try:
                tape = trace_job(job, models[job.model]["config"], Card(), python=options.python)
                settings = AllocatorSettings(
                    expandable_segments=job.allocator == "expandable_segments",
                    oldest_segment_first=takes_oldest_segment_first(tape.versions["torch"]),
                )
                steps = program(tape)
                free, real = replay(steps, settings), replay(steps, settings, H200_CAPACITY_BYTES)
                seen = real if real.completed else free
                row["predicted"] = {
                    "completed": real.completed, "model_bytes": seen.model_bytes,
                    "allocated_bytes": seen.allocated_bytes, "reserved_bytes": seen.reserved_bytes,
                }  # fmt: skip
                row["guesses"] = list(tape.guesses)
            except TunecastError as error:
                row["refused"] = error.message
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(job.id, row.get("predicted") or row.get("refused"), f"{time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
