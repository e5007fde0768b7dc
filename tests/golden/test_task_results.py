"""What drawn jobs of every task showed on an H200 (benchmarks/tasks.py), held so that nobody loses it unseen."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tunecast.prediction.time.ranges import GENERATES, OTHER_TASK, WITH_IMAGES, TimeBand

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
Row = dict[str, Any]


def ran(*names: str) -> list[Row]:
    rows = [row for name in names for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]]
    return [row for row in rows if "failed" not in row]


def off(rows: list[Row], key: str) -> list[float]:
    return [abs(row[key]) for row in rows]


def test_enough_jobs_of_each_kind_ran() -> None:
    rows = ran("tasks", "tasks2")
    assert len([row for row in rows if not row["images"]]) >= 16
    assert len([row for row in rows if row["images"]]) >= 6
    assert {row["task"] for row in rows} >= {"dpo", "kto", "orpo", "cpo", "simpo", "reward", "classify", "grpo", "rloo"}


def test_memory_is_that_of_the_card() -> None:
    rows = ran("tasks", "tasks2")
    assert statistics.median(off(rows, "allocated_error")) <= 0.001
    assert max(off(ran("tasks2"), "allocated_error")) <= 0.01
    assert max(off(ran("tasks2"), "reserved_error")) <= 0.02


@pytest.mark.parametrize(
    ("band", "kind"), [(GENERATES, "generates"), (OTHER_TASK, "task"), (WITH_IMAGES, "images")], ids=str
)
def test_ranges_of_time_are_where_four_of_five_lie(band: TimeBand, kind: str) -> None:
    rows = ran("tasks", "tasks2")
    kinds = {
        "images": [row for row in rows if row["images"]],
        "generates": [row for row in rows if "generate_error" in row],
        "task": [row for row in rows if not row["images"] and "generate_error" not in row],
    }
    found = sorted(1 / (1 + row["step_error"]) for row in kinds[kind])
    low, high = found[round(0.1 * (len(found) - 1))], found[round(0.9 * (len(found) - 1))]
    assert band.runs == len(found)
    assert band.below == pytest.approx(max(0.0, 1 - low), abs=0.02)
    assert band.above == pytest.approx(high - 1, abs=0.02)
