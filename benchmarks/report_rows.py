"""Rows of the tables of docs/accuracy.md, for either engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GIB = 2**30
Row = dict[str, Any]
HEAD = ["run", "allocated GiB", "error", "reserved GiB", "error", ""]
HEAD_WITH_WHAT = ["run", "what", *HEAD[1:]]


def lines_of(name: str) -> list[Row]:
    path = HERE / "data" / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def percent(value: float) -> str:
    return "exact" if value == 0 else f"{value:+.4%}"


def in_gib(nbytes: float) -> str:
    return f"{nbytes / GIB:.3f}"


def promise_rows(promises: list[tuple[str, str, bool]]) -> list[list[str]]:
    return [[promise, measured, "kept" if holds else "**missed**"] for promise, measured, holds in promises]


def error_rows(rows: list[Row]) -> list[list[str]]:
    """id, what it is where that is known, measured and errors; worst first by the larger of the two."""
    worst = sorted(rows, key=lambda r: -max(abs(r["error"]["allocated_bytes"]), abs(r["error"]["reserved_bytes"])))
    return [
        [
            row["id"],
            *([row["about"]] if "about" in row else []),
            in_gib(row["measured"]["allocated_bytes"]),
            percent(row["error"]["allocated_bytes"]),
            in_gib(row["measured"]["reserved_bytes"]),
            percent(row["error"]["reserved_bytes"]),
            "estimate" if row["guesses"] else "",
        ]
        for row in worst
    ]


def comparison(row: Row) -> Row:
    """Of a run that was predicted first: a row as `memory.compare` makes them."""
    measured, predicted = row["measured"], row["predicted"]
    job = row.get("job") or {"id": row["id"]}
    out = {"id": job["id"], "guesses": row.get("guesses", []), "about": row.get("about") or described(job)}
    out["measured"] = {"allocated_bytes": measured["peak_alloc"], "reserved_bytes": measured["peak_reserved"]}
    out["error"] = {k: predicted[k] / v - 1 for k, v in out["measured"].items()}
    return out


def described(job: Row) -> str:
    if "model" not in job:
        return ""
    parts = [job["model"], job["method"], f"b{job['micro_batch']}", f"s{job['seq_len']}", job["optimizer"]]
    parts += ["recomputed"] if job["gradient_checkpointing"] else []
    parts += [job["quantization"]["format"]] if "quantization" in job else []
    parts += [job["attention"]] if job["attention"] != "sdpa" else []
    parts += job.get("kernels", [])
    parts += ["DoRA"] if job.get("lora", {}).get("dora") else []
    parts += [f"{len(job['lengths'])} lengths"] if job.get("lengths") else []
    parts += ["expandable"] if job["allocator"] != "native" else []
    return " ".join(parts)
