"""What files state of their own memory and time, as committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "published_recipes.json"


def test_the_page_is_that_of_the_result() -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "published_recipes.py"), "--page"]
    told = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert told.strip() in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")


def test_where_lengths_are_known_memory_is_within_a_tenth_and_time_within_a_fifth() -> None:
    """In the median of the files that state them, which was the aim before any was predicted."""
    known = json.loads(RESULT.read_text(encoding="utf-8"))["known"]
    assert known["memory"]["rows"] >= 14 and known["time"]["rows"] >= 6
    assert known["memory"]["median"] <= 0.1
    assert known["time"]["median"] <= 0.2


@pytest.mark.parametrize(("framework", "rows", "median"), [("unsloth", 6, 0.05), ("ms-swift", 8, 0.11)])
def test_memory_where_lengths_are_known_is_no_worse_than_committed(framework: str, rows: int, median: float) -> None:
    """A guard against getting worse: these bounds were set after the results, of 4.6 and 10.9 %, were seen."""
    found = json.loads(RESULT.read_text(encoding="utf-8"))["by_framework"][framework]["known"]["memory"]
    assert found["rows"] >= rows
    assert found["median"] <= median
