"""The page of predicted times is what the committed results say, and they cover every row."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import figures  # noqa: E402
import report_time  # noqa: E402
import timing  # noqa: E402

RESULTS = {
    "time_public.json": [row["id"] for row in timing.rows_of("public_runs.jsonl") if "step_s" in row["measured"]],
    "time_vendor.json": [row["id"] for row in timing.rows_of("vendor_runs.jsonl")],
    "sharded_memory.json": [row["id"] for row in timing.rows_of("public_runs.jsonl") if "memory" in row["measured"]],
}


@pytest.mark.parametrize("path", report_time.written(), ids=lambda path: path.name)
def test_a_page_is_what_the_results_say(path: Path) -> None:
    assert path.read_text() == report_time.written()[path], "run benchmarks/report_time.py"


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_covers_every_row_and_refuses_with_a_reason(name: str) -> None:
    rows = figures.load(name)["rows"]
    assert [row["id"] for row in rows] == RESULTS[name]
    for row in rows:
        assert ("tunecast" in row["error"]) != bool(row["said"]["tunecast"].get("refused"))


@pytest.mark.parametrize("name", RESULTS)
def test_no_row_meets_a_fault_of_ours(name: str) -> None:
    faults = [reason for reason in figures.load(name)["refused"] if reason["reason"].startswith("fault: ")]
    assert not faults
