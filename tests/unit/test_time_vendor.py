"""What is reached on vendors' published runs stays reached: benchmarks/results/time_vendor.json as committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "time_vendor.json"
MADE: dict[str, Any] = json.loads(RESULTS.read_text())


def test_nine_of_ten_speeds_are_within_a_fifth() -> None:
    (every,) = (group["tools"]["tunecast"] for group in MADE["groups"] if group["group"] == "all")
    assert every["answered"] >= 370
    assert every["median"] < 0.055 and every["p90"] < 0.20


def test_runs_that_ran_are_said_to_fit() -> None:
    """All of them ran."""
    assert MADE["fit"]["answered"] >= 370
    assert MADE["fit"]["does_not_fit"] <= 0.03 * MADE["fit"]["answered"]


def test_the_cards_of_mlperf_are_in_order() -> None:
    assert MADE["order"]["agrees"]
