"""How far predictions are off, by kind of run: the figures the tests and `report.py` read off a benchmark result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Row = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "results" / name).read_text())
    return found


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Markdown, with an empty line after it."""
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def quantile(values: list[float], q: float) -> float:
    """The smallest value that at least a share `q` of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(q * 1000) * len(ordered) // 1000) - 1)]


def errors(rows: list[Row], what: str, kind: str, expandable: bool | None = None) -> list[float]:
    """Absolute relative errors of one kind of runs."""
    return [
        abs(row["error"][what])
        for row in rows
        if row["kind"] == kind and (expandable is None or row["expandable"] is expandable)
    ]


def summary(rows: list[Row]) -> list[tuple[str, str, bool]]:
    """What is promised, what is measured, and whether it holds."""
    allocated = errors(rows, "allocated_bytes", "fixed length")
    reserved = errors(rows, "reserved_bytes", "fixed length")
    compiled = errors(rows, "allocated_bytes", "compiled")
    native = errors(rows, "reserved_bytes", "mixed lengths", expandable=False)
    expandable = errors(rows, "reserved_bytes", "mixed lengths", expandable=True)
    outside = [row["outside_interval"] for row in rows if row["kind"] == "bisected"]
    capped = [row for row in rows if row["kind"] == "capped"]
    right = sum(row["predicted"]["completed"] == row["measured"]["completed"] for row in capped)
    exact = sum(e == 0 for e in allocated)
    exact_reserved = sum(e == 0 for e in reserved)
    return [
        (
            f"allocated, {len(allocated)} fixed-length runs: within 0.05 % for 90 %",
            f"p90 {quantile(allocated, 0.9):.4%}; exact to the byte in {exact}",
            quantile(allocated, 0.9) <= 0.0005,
        ),
        (
            f"allocated, {len(allocated)} fixed-length runs: all within 1 %",
            f"worst {max(allocated):.4%}",
            max(allocated) <= 0.01,
        ),
        (f"allocated, {len(compiled)} compiled run: within 5 %", f"worst {max(compiled):.3%}", max(compiled) <= 0.05),
        (
            f"reserved, {len(reserved)} fixed-length runs: median within 0.1 %",
            f"median {quantile(reserved, 0.5):.4%}; exact to the byte in {exact_reserved}",
            quantile(reserved, 0.5) <= 0.001,
        ),
        (
            f"reserved, {len(reserved)} fixed-length runs: 95 % within 1.5 %",
            f"p95 {quantile(reserved, 0.95):.3%}",
            quantile(reserved, 0.95) <= 0.015,
        ),
        (
            f"reserved, {len(native)} mixed-length runs, native: each within 1 %",
            f"worst {max(native):.3%}",
            max(native) <= 0.01,
        ),
        (
            f"reserved, {len(expandable)} mixed-length runs, expandable segments: each within 3 %",
            f"worst {max(expandable):.3%}",
            max(expandable) <= 0.03,
        ),
        (
            f"least capacity, {len(outside)} bisected runs: within 0.5 % of the interval",
            f"worst {max(outside):.3%} outside",
            max(outside) <= 0.005,
        ),
        (
            f"completes or not, {len(capped)} runs short of memory: every one called right",
            f"{right} of {len(capped)}",
            right == len(capped),
        ),
    ]


def closed_summary(rows: list[Row]) -> list[tuple[str, str, bool]]:
    """The same for the closed form. Nothing is fitted, so nothing has to be left out."""
    asked = [row for row in rows if not row["id"].endswith("-compile")]
    refused = [row for row in asked if row["kind"] == "refused"]
    allocated = errors(rows, "allocated_bytes", "fixed length")
    device = errors(rows, "device_bytes", "fixed length") + errors(rows, "device_bytes", "mixed lengths")
    native = errors(rows, "reserved_bytes", "mixed lengths", expandable=False)
    outside = [row["outside_interval"] for row in rows if row["kind"] == "bisected"]
    capped = [row for row in rows if row["kind"] == "capped"]
    right = sum(row["predicted"]["completed"] == row["measured"]["completed"] for row in capped)
    exact = sum(e == 0 for e in allocated)
    return [
        (
            f"{len(asked)} runs without torch.compile: all answered",
            f"{len(asked) - len(refused)} answered",
            not refused,
        ),
        (
            f"allocated, {len(allocated)} fixed-length runs: median 0.3 %, 95 % within 2 %",
            f"median {quantile(allocated, 0.5):.4%}, p95 {quantile(allocated, 0.95):.4%}; {exact} exact to the byte",
            quantile(allocated, 0.5) <= 0.003 and quantile(allocated, 0.95) <= 0.02,
        ),
        (
            f"device memory, {len(device)} runs: median 1.5 %, p90 4 %",
            f"median {quantile(device, 0.5):.3%}, p90 {quantile(device, 0.9):.3%}",
            quantile(device, 0.5) <= 0.015 and quantile(device, 0.9) <= 0.04,
        ),
        (
            f"reserved, {len(native)} mixed-length runs, native: median 4 %, worst 12 %",
            f"median {quantile(native, 0.5):.3%}, worst {max(native):.3%}",
            quantile(native, 0.5) <= 0.04 and max(native) <= 0.12,
        ),
        (
            f"least capacity, {len(outside)} bisected runs: within 2 % of the interval",
            f"worst {max(outside):.3%} outside",
            max(outside) <= 0.02,
        ),
        (
            f"completes or not, {len(capped)} runs short of memory",
            f"{right} of {len(capped)} called right",
            right == len(capped),
        ),
    ]
