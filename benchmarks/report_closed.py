"""The closed form's part of docs/accuracy.md; `report.py` calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from figures import closed_summary, load

HERE = Path(__file__).parent


def closed_section(table: Any, comparison: Any, error_rows: Any) -> list[str]:
    """What is promised and kept, what was predicted before it was measured, and where it leaves the tracer."""
    result, traced = load("memory_analytic.json"), {row["id"]: row for row in load("memory.json")["rows"]}
    rows = result["rows"]
    promises = closed_summary(rows)
    lines = [
        "# The closed form",
        "",
        f"`--engine analytic`, no torch, on the same runs. Result of commit `{result['commit']}`; to repeat: "
        "`python benchmarks/memory.py --engine analytic`. Nothing is fitted to these runs.",
        "",
        *table(["promise", "measured", ""], [[p, m, "kept" if ok else "**missed**"] for p, m, ok in promises]),
    ]
    differ = [
        [
            row["id"],
            f"{row['predicted']['allocated_bytes'] - traced[row['id']]['predicted']['allocated_bytes']:+,}",
            f"{row['predicted']['reserved_bytes'] - traced[row['id']]['predicted']['reserved_bytes']:+,}",
        ]
        for row in rows
        if "error" in row and any(row["predicted"][k] != traced[row["id"]]["predicted"][k] for k in KINDS)
    ]
    refused = [row for row in rows if row["kind"] == "refused"]
    same = sum("error" in row for row in rows) - len(differ)
    lines += [f"The figures are the tracer's to the byte in {same} runs; in these they are not:", ""] if differ else []
    lines += table(["run", "allocated, bytes more than traced", "reserved"], differ) if differ else []
    lines += [*(f"- refused: {row['id']}: {row['refused']}" for row in refused), ""] if refused else []
    return lines + _generated(table, comparison, error_rows)


KINDS = ("allocated_bytes", "reserved_bytes")


def _generated(table: Any, comparison: Any, error_rows: Any) -> list[str]:
    path = HERE / "data" / "closed_runs.jsonl"
    if not path.exists():
        return []
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    refused = [row for row in runs if "refused" in row]
    ran = [row for row in runs if "predicted" in row]
    ended = [row for row in ran if row["measured"].get("completed") and row["predicted"]["completed"]]
    called = sum(row["predicted"]["completed"] == bool(row["measured"].get("completed")) for row in ran)
    compared = [comparison(row) for row in ended]
    about = {row["id"]: row["about"] for row in compared}
    exact = sum(row["error"]["allocated_bytes"] == 0 for row in compared)
    return [
        "## Predicted by the closed form before measured",
        "",
        f"{len(runs)} jobs drawn from a seed over the bundled text models up to 10 B parameters. "
        f"{len(refused)} refused; "
        f"of the other {len(ran)}, {called} called right (completes or not). "
        f"Allocated is exact to the byte in {exact} of {len(compared)}.",
        "",
        *table(
            ["run", "what", "allocated GiB", "error", "reserved GiB", "error", ""],
            [[row[0], about[row[0]], *row[1:]] for row in error_rows(compared)],
        ),
    ]
