"""What files state of their own memory and time, as committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "published_recipes.json"


def test_the_page_is_that_of_the_result() -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "published_recipes.py"), "--page"]
    told = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert told.strip() in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")


def test_memory_where_lengths_are_known_is_no_worse_than_committed() -> None:
    """A guard against getting worse: the bound was set after the result, of 12.2 %, was seen. The aim is 10 %."""
    found = json.loads(RESULT.read_text(encoding="utf-8"))["by_framework"]["unsloth"]["known"]["memory"]
    assert found["rows"] >= 5
    assert found["median"] <= 0.125
