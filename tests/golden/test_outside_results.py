"""Loading, saving, evaluating and resuming against the H200: the committed result, and that it is today's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import outside  # noqa: E402

from tunecast.units import KIB, MIB  # noqa: E402

ROWS: list[dict[str, Any]] = json.loads((BENCHMARKS / "results" / "outside.json").read_text())["rows"]
LIMITS = {
    "disk": 128 * KIB,
    "count": 0,
    "mapped": 10 * MIB,
    "host": 32 * MIB,
    "card": 8 * KIB,
}
NO_MEASUREMENT = {("lora-3b", "saving: host"), ("full-1b-float32", "process, training: host")}
"""What these rows hold beside what they are named for is told in their notes."""


def kind_of(what: str) -> str:
    for kind in ("disk", "count", "mapped", "host"):
        if kind in what:
            return kind
    return "card"


@pytest.mark.parametrize("kind", LIMITS)
def test_what_is_said_now_was_measured(kind: str) -> None:
    errors = {(row["case"], row["what"]): row["now"] - row["measured"] for row in ROWS if kind_of(row["what"]) == kind}
    assert len(errors) >= 10
    assert not {of: error for of, error in errors.items() if abs(error) > LIMITS[kind] and of not in NO_MEASUREMENT}


def test_the_result_is_what_the_closed_form_says_today() -> None:
    assert outside.rows() == ROWS


def test_every_case_was_measured_and_what_was_said_first_stands() -> None:
    first = {row["case"]: row["predicted"] for row in outside.lines_of("outside_predictions.jsonl")}
    assert {row["case"] for row in ROWS} == set(first)
    told = {(row["case"], row["what"]): row["first"] for row in ROWS}
    assert told["context", "process: host"] == first["context"]["host_process_bytes"] == 2**30
    assert told["load-3b-int8", "loading: host"] == first["load-3b-int8"]["loading"]["host_bytes"] == 100_663_296
    assert told["full-1b", "evaluation: growth of reserved"] is None


def test_errors_are_signed() -> None:
    row = {"measured": 100 * MIB, "first": 101 * MIB, "now": 100 * MIB}
    assert (outside.error(row, "first"), outside.error(row, "now")) == ("+1.00 MiB (+1.00%)", "exact")
    assert outside.error({"measured": 2 * KIB, "now": KIB}, "now") == "-1.00 KiB"
    assert outside.error({"measured": 0, "first": None}, "first") == "not predicted"


def test_the_report_is_worst_first() -> None:
    lines = outside.outside_section()
    table = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    assert table[0][0] == "| lora-3b"
    assert any(cells[0] == "| context" and cells[4] == "+299.20 MiB (+41.28%)" for cells in table)
    assert len(table) < len(ROWS)
