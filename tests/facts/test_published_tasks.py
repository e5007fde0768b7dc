"""Published figures of other tasks: each has a source, and a job that is understood or the reason why there is none."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict

FILE = Path(__file__).parents[2] / "benchmarks" / "data" / "published_tasks.csv"
REFUSED = ("vision.images",)
"""Pictures in preferences."""
ROWS = list(csv.DictReader(FILE.open(encoding="utf-8", newline="")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_row_is_compared_or_left_out_for_a_reason(row: dict[str, str]) -> None:
    assert row["source"].startswith("https://")
    assert bool(row["job"]) != bool(row["left_out"])
    if not row["job"]:
        return
    assert row["lengths"] in ("known", "bound")
    assert bool(row["gib"]) != bool(row["fits"])
    try:
        job = job_from_dict(json.loads(row["job"]))
    except UsageError as error:  # what is not modelled yet is refused by name
        assert error.field in REFUSED
        return
    assert job.task == row["task"]
    assert job.hardware.cards == int(row["gpus"])


def test_names_are_told_apart() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS)
