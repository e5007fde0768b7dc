"""tunecast and its peers on the completed runs of data/h200_runs.jsonl, device and allocated memory, in one run."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit, models  # noqa: E402
from peers import PEERS, answers, versions  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job import Job, job_from_dict  # noqa: E402
from tunecast.job.model import bundled_models  # noqa: E402
from tunecast.prediction.engines import predict  # noqa: E402

KINDS = {"allocated_bytes": "peak_alloc", "device_bytes": "device_used"}
Row = dict[str, Any]


def runs() -> list[Row]:
    """Those that completed on a whole card and whose device memory was read."""
    lines = (HERE / "data" / "h200_runs.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [
        row
        for row in found
        if row["measured"].get("device_used") and "hardware" not in row["job"] and "cap_runs_gib" not in row["measured"]
    ]


def said_by_tunecast(job: Job, engine: str, **how: Any) -> Row:
    try:
        memory = predict(job, engine=engine, **how).memory
    except TunecastError as error:
        return {"refused": error.message}
    return {name: getattr(memory, name) for name in KINDS}


def summary(rows: list[Row]) -> dict[str, Row]:
    """Per tool and kind: how many it answers, and how far off it is where it does."""
    found: dict[str, Row] = {}
    for tool in ("tunecast", *PEERS):
        for kind in KINDS:
            off = sorted(abs(row["error"][tool][kind]) for row in rows if row["error"].get(tool))
            found.setdefault(tool, {})[kind] = {
                "rows": len(rows),
                "answered": len(off),
                "median": statistics.median(off) if off else None,
                "p90": off[max(0, -(-9 * len(off) // 10) - 1)] if off else None,
                "worst": off[-1] if off else None,
            }
    return found


def result(python: str, engine: str = "analytic", tracing_python: str | None = None) -> Row:
    given = runs()
    jobs = [job_from_dict(row["job"]) for row in given]
    configs, registry = models(), bundled_models()
    counts = [registry.get(job.model, {}).get("parameters") for job in jobs]
    others = answers(((job.flat(), configs[job.model], n) for job, n in zip(jobs, counts, strict=True)), python)
    how = {"python": tracing_python} if tracing_python else {}
    rows = []
    for row, job, other in zip(given, jobs, others, strict=True):
        said = {"tunecast": said_by_tunecast(job, engine, **how), **other}
        measured = {kind: row["measured"][name] for kind, name in KINDS.items()}
        rows.append(
            {
                "id": job.id,
                "measured": measured,
                "said": said,
                "error": {
                    tool: {kind: answer[kind] / nbytes - 1 for kind, nbytes in measured.items()}
                    for tool, answer in said.items()
                    if "refused" not in answer
                },
            }
        )
    return {
        "commit": commit(),
        "engine": engine,
        "peers": versions(python),
        "summary": summary(rows),
        "rows": rows,
    }
