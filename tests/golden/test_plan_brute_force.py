"""What brute force found over five spaces (benchmarks/plan_brute_force.py): no better pick than the plan's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "plan_brute_force.json"
ROWS = json.loads(RESULTS.read_text("utf-8"))["rows"]


def test_five_spaces_were_searched() -> None:
    assert len({row["space"] for row in ROWS}) == 5
    assert sum(row["predicted"] for row in ROWS) > 2000


@pytest.mark.parametrize("row", ROWS, ids=[row["space"] for row in ROWS])
def test_no_setting_is_better_than_the_picks(row: dict) -> None:
    assert row["plan_cheapest"]["usd"] <= row["cheapest"]["usd"] * 1.0101
    assert row["plan_fastest"]["seconds"] <= row["fastest"]["seconds"] * 1.0101
    assert row["plan_cheapest"]["usd"] >= row["cheapest"]["usd"] * 0.9999, "the bill is the same, made twice"
