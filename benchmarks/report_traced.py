"""The traced engine's part of docs/accuracy.md; `report.py` calls it."""

from __future__ import annotations

from figures import load, table
from report_rows import HEAD, HEAD_WITH_WHAT, Row, comparison, error_rows, in_gib, lines_of


def later_section() -> list[str]:
    """Jobs and scripts predicted, and the predictions committed, before they ran."""
    runs = [*lines_of("generated_runs.jsonl"), *lines_of("script_runs.jsonl")]
    ended = [row for row in runs if row["measured"].get("completed") and row["predicted"]["completed"]]
    stopped = [row for row in runs if not row["measured"].get("completed")]
    compared = [comparison(row) for row in ended]
    exact = sum(row["error"]["allocated_bytes"] == 0 for row in compared)
    lines = [
        "## Predicted by tracing before measured",
        "",
        f"{len(compared)} jobs drawn by `benchmarks/generate.py` from its seed, and unmodified scripts of "
        "`examples/scripts`, predicted and committed before they ran. "
        f"Allocated is exact to the byte in {exact} of {len(compared)}.",
        "",
    ]
    if stopped:
        lines += [f"{len(stopped)} more ran out of memory: " + ", ".join(row["job"]["id"] for row in stopped), ""]
    if waiting := still_to_measure(runs):
        lines += [f"Predicted (`benchmarks/data/*_predictions.jsonl`) and not measured yet: {', '.join(waiting)}.", ""]
    return lines + table(HEAD_WITH_WHAT, error_rows(compared))


def name_of(row: Row) -> str:
    return str(row["job"]["id"] if "job" in row else row["id"])


def still_to_measure(runs: list[Row]) -> list[str]:
    """Predicted and committed, not run on the card yet."""
    said = [*lines_of("generated_predictions.jsonl"), *lines_of("script_predictions.jsonl")]
    measured = {name_of(row) for row in runs}
    return [name_of(row) for row in said if name_of(row) not in measured]


def unsloth_section() -> list[str]:
    return [
        "## Unsloth",
        "",
        "The real package under the tracer, then on the H200 (`benchmarks/data/README.md`).",
        "",
        *table(HEAD_WITH_WHAT, error_rows([comparison(row) for row in lines_of("unsloth_runs.jsonl")])),
    ]


def traced_only_section() -> list[str]:
    """What the closed form has no table of."""
    rows = load("memory.json")["rows"]
    compiled = [row for row in rows if row["kind"] == "compiled"]
    lines = ["## Compiled, traced", "", *table(HEAD, error_rows(compiled))]
    bisected = [
        [
            row["id"],
            in_gib(row["predicted"]["smallest_capacity_bytes"]),
            f"{in_gib(row['measured']['fails_bytes'])} and {in_gib(row['measured']['completes_bytes'])}",
        ]
        for row in rows
        if row["kind"] == "bisected"
    ]
    head = ["run", "least capacity predicted GiB", "measured between GiB"]
    return [*lines, "## Least capacity", "", *table(head, bisected)]
