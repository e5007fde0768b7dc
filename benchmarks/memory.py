"""Predicted memory against measured memory, every run of `data/`; writes `results/memory.json`.

    python benchmarks/memory.py --python ENV/bin/python [--only TEXT] [--jobs N]
    python benchmarks/memory.py --engine analytic                 the closed form; writes `results/memory_analytic.json`

ENV holds the packages the runs were measured with (data/README.md). One tape serves all rows that differ only in the
allocator's settings or capacity. Accuracy is enforced by tests on the committed result; time is only reported.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

from tunecast.errors import Unsupported  # noqa: E402
from tunecast.job import Job, job_from_dict  # noqa: E402
from tunecast.prediction.memory.allocator import AllocatorSettings, takes_oldest_segment_first  # noqa: E402
from tunecast.prediction.memory.needs import smallest_capacity_bytes  # noqa: E402
from tunecast.prediction.memory.replay import Replays, replay, rows_of  # noqa: E402
from tunecast.prediction.on_card import H200_CONTEXT  # noqa: E402
from tunecast.tape.build.job_runs import fold_job  # noqa: E402
from tunecast.tape.card import Card  # noqa: E402
from tunecast.tape.fold import Folded  # noqa: E402
from tunecast.tape.op import Tape  # noqa: E402
from tunecast.tape.trace.engine import trace_job  # noqa: E402

GIB = 2**30
H200_CAPACITY_BYTES = 150_110_011_392 - 804_061_184
"""What is left of an H200 for the caching allocator: its memory less what the context held during these runs."""


def rows(path: Path) -> Iterator[tuple[Job, dict[str, Any]]]:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        yield job_from_dict(row["job"]), row["measured"]


def models() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "data" / "h200_models.json").read_text())
    return found


def tape_key(job: Job) -> Job:
    """What decides the tape: all but how and in how much memory it is replayed."""
    return dataclasses.replace(
        job, id=None, allocator="native", hardware=dataclasses.replace(job.hardware, capacity_bytes=None)
    )


def compare(job: Job, measured: dict[str, Any], tape: Tape | Folded, torch_version: str) -> dict[str, Any]:
    """One row of the result. `torch_version` is the measured one: ties between segments depend on it."""
    settings = AllocatorSettings(
        expandable_segments=job.allocator == "expandable_segments",
        oldest_segment_first=takes_oldest_segment_first(torch_version),
    )
    steps = rows_of(tape)
    free = replay(steps, settings)
    row: dict[str, Any] = {
        "id": job.id,
        "guesses": list(tape.guesses),
        "predicted": {
            "model_bytes": free.model_bytes,
            "allocated_bytes": free.allocated_bytes,
            "reserved_bytes": free.reserved_bytes,
            "device_bytes": free.reserved_bytes + H200_CONTEXT.nbytes,
        },
    }
    capacity = job.hardware.capacity_bytes
    if "cap_runs_gib" in measured:
        low, high = (measured[k] * GIB for k in ("cap_fails_gib", "cap_runs_gib"))
        least = smallest_capacity_bytes(Replays(steps, settings))
        row["kind"] = "bisected"
        row["measured"] = {"fails_bytes": int(low), "completes_bytes": int(high)}
        row["predicted"]["smallest_capacity_bytes"] = least
        row["outside_interval"] = max(low - least, least - high, 0) / low
        return row
    if capacity is not None or not measured["completed"]:
        done = replay(steps, settings, capacity or H200_CAPACITY_BYTES)
        row["kind"] = "capped"
        row["measured"] = {"completed": measured["completed"]}
        row["predicted"]["completed"] = done.completed
        return row
    row["kind"] = "compiled" if job.compile else "mixed lengths" if job.lengths else "fixed length"
    row["expandable"] = settings.expandable_segments
    row["measured"] = {
        "model_bytes": measured["model_alloc"],
        "allocated_bytes": measured["peak_alloc"],
        "reserved_bytes": measured["peak_reserved"],
        "device_bytes": measured["device_used"],
    }
    row["error"] = {k: row["predicted"][k] / v - 1 for k, v in row["measured"].items()}
    return row


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", "../src") else "")


def group_results(group: list[tuple[Job, dict[str, Any]]], python: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows that share a tape: made once, replayed for each. Without an interpreter, by the closed form."""
    job = group[0][0]
    start = time.perf_counter()
    config = models()[job.model]
    try:
        tape = trace_job(job, config, Card(), python=python) if python else fold_job(job, config, Card())
    except Unsupported as error:
        return [{"id": job.id, "kind": "refused", "refused": error.message, "trace_s": 0} for job, _ in group], {}
    seconds = round(time.perf_counter() - start, 1 if python else 3)
    return [compare(job, measured, tape, "2.11.0") | {"trace_s": seconds} for job, measured in group], dict(
        tape.versions
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch and the measured packages")
    parser.add_argument("--engine", choices=("traced", "analytic"), default="traced")
    parser.add_argument("--only", default="", help="rows whose id contains this; prints, writes nothing")
    parser.add_argument("--jobs", type=int, default=1, help="tapes at once; each takes two cores and 2 GiB")
    parser.add_argument("--commit", help="the commit this is a copy of, where git cannot say")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    analytic = options.engine == "analytic"
    out = options.out or HERE / "results" / ("memory_analytic.json" if analytic else "memory.json")
    groups: dict[Job, list[tuple[Job, dict[str, Any]]]] = {}
    order = []
    for job, measured in rows(HERE / "data" / "h200_runs.jsonl"):
        if options.only in str(job.id):
            groups.setdefault(tape_key(job), []).append((job, measured))
            order.append(job.id)
    made_at, found, versions = options.commit or commit(), {}, {}
    with ProcessPoolExecutor(options.jobs) as pool:
        python = "" if analytic else options.python
        for results, traced_with in pool.map(group_results, groups.values(), repeat(python)):
            versions |= traced_with
            for row in results:
                found[row["id"]] = row
                shown = row.get("error") or {
                    k: row[k] for k in ("refused", "outside_interval", "predicted", "measured") if k in row
                }
                shown = {k: f"{v:+.4%}" if isinstance(v, float) else v for k, v in shown.items()}
                print(row["id"], row["kind"], shown, f"{row['trace_s']} s", flush=True)
    if not options.only:
        result = {"commit": made_at, "versions": versions, "rows": [found[name] for name in order]}
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
