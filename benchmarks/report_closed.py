"""The closed form's part of docs/accuracy.md; `report.py` calls it."""

from __future__ import annotations

from figures import load, table
from report_rows import HEAD, HEAD_WITH_WHAT, comparison, error_rows, lines_of, percent

KINDS = ("allocated_bytes", "reserved_bytes")


def against_traced_section() -> list[str]:
    """Where the closed form leaves the tracer, and what it refuses."""
    rows, traced = load("memory_analytic.json")["rows"], {row["id"]: row for row in load("memory.json")["rows"]}
    differ = [
        [
            row["id"],
            *(f"{row['predicted'][kind] - traced[row['id']]['predicted'][kind]:+,}" for kind in KINDS),
        ]
        for row in rows
        if "error" in row and any(row["predicted"][kind] != traced[row["id"]]["predicted"][kind] for kind in KINDS)
    ]
    refused = [row for row in rows if row["kind"] == "refused"]
    same = sum("error" in row for row in rows) - len(differ)
    lines = ["## The closed form beside the tracer", ""]
    lines += [
        f"Its figures are the tracer's to the byte in {same} runs" + ("; in these they are not:" if differ else "."),
        "",
    ]
    lines += table(["run", "allocated, bytes more than traced", "reserved"], differ) if differ else []
    return lines + ([*(f"- refused: {row['id']}: {row['refused']}" for row in refused), ""] if refused else [])


def runs_section() -> list[str]:
    """Every completed run of the benchmark, worst first."""
    rows = load("memory_analytic.json")["rows"]
    lines: list[str] = []
    for kind in ("fixed length", "mixed lengths", "compiled"):
        chosen = [row for row in rows if row["kind"] == kind]
        if not chosen:
            continue
        device = {row["id"]: percent(row["error"]["device_bytes"]) for row in chosen}
        told = [[*row[:-1], device[row[0]], row[-1]] for row in error_rows(chosen)]
        lines += [f"## Measured runs: {kind}", "", *table([*HEAD[:-1], "device, error", ""], told)]
    return lines


def first_section() -> list[str]:
    runs = lines_of("closed_runs.jsonl")
    if not runs:
        return []
    refused = [row for row in runs if "refused" in row]
    ran = [row for row in runs if "predicted" in row]
    ended = [row for row in ran if row["measured"].get("completed") and row["predicted"]["completed"]]
    called = sum(row["predicted"]["completed"] == bool(row["measured"].get("completed")) for row in ran)
    compared = [comparison(row) for row in ended]
    exact = sum(row["error"]["allocated_bytes"] == 0 for row in compared)
    return [
        "## Predicted by the closed form before measured",
        "",
        f"{len(runs)} jobs drawn from a seed over the bundled text models up to 10 B parameters. "
        f"{len(refused)} refused; "
        f"of the other {len(ran)}, {called} called right (completes or not). "
        f"Allocated is exact to the byte in {exact} of {len(compared)}.",
        "",
        *table(HEAD_WITH_WHAT, error_rows(compared)),
    ]
