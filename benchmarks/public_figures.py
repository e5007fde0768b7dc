"""How far predictions of published runs are off, by stack and kind of memory: what tests and the report read off."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]

KIND_FIELDS: Mapping[str, str] = {
    "allocated": "allocated_bytes",
    "active": "allocated_bytes",
    "reserved": "reserved_bytes",
    "unstated": "allocated_bytes",
    "device": "device_bytes",
}
"""Which of our figures a source's kind is. Active is allocated and what another stream may still use: on one stream,
nothing. The two rows whose source does not say are torchtune's, which prints active first."""

LEAST_ANSWERED = 0.9
MOST_MEDIAN = 0.04


def off(errors: list[float], rows: int) -> Row:
    """One tool's figures on a group: how many it answers, and how far off it is where it does."""
    sizes = sorted(abs(error) for error in errors)
    told: Row = {"answered": len(sizes), "answered_fraction": len(sizes) / rows}
    if sizes:
        told |= {
            "median": statistics.median(sizes),
            "median_signed": statistics.median(errors),
            "p90": sizes[-(-9 * len(sizes) // 10) - 1],
            "worst": sizes[-1],
        }
    return told


def groups(rows: list[Row]) -> list[Row]:
    """By stack and kind; a row with a second measurement (nvidia-smi) counts in the stack's device group as well."""
    members: dict[tuple[str, str], list[tuple[Row, str]]] = {}
    for row in rows:
        members.setdefault((row["stack"], row["kind"]), []).append((row, "error"))
        if "device_error" in row:
            members.setdefault((row["stack"], "device"), []).append((row, "device_error"))
    tools = list(dict.fromkeys(tool for row in rows for tool in row["said"]))
    found = []
    for (stack, kind), chosen in sorted(members.items()):
        by_tool = {
            tool: off([row[errors][tool] for row, errors in chosen if tool in row[errors]], len(chosen))
            for tool in tools
        }
        found.append({"stack": stack, "kind": kind, "rows": len(chosen), "tools": by_tool})
    return found


def promises(found: list[Row]) -> list[tuple[str, str, bool]]:
    """What is promised of each group but the device ones, what is measured, and whether it holds."""
    lines = []
    for group in found:
        if group["kind"] == "device":
            continue
        ours = group["tools"]["tunecast"]
        kept = ours["answered_fraction"] >= LEAST_ANSWERED and ours.get("median", 1.0) <= MOST_MEDIAN
        measured = f"{ours['answered']} of {group['rows']} answered"
        if ours["answered"]:
            measured += f", median {ours['median']:.2%}, worst {ours['worst']:.2%}"
        lines.append(
            (
                f"{group['stack']}, {group['kind']}: {LEAST_ANSWERED:.0%} answered, median within {MOST_MEDIAN:.0%}",
                measured,
                kept,
            )
        )
    return lines
