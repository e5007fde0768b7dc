"""Whole jobs of the Trainer, each predicted and written down before it ran: two rounds on two hosts of an H200."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def rows(name: str) -> dict[tuple[int, str], dict]:
    return {(row["round"], row["id"]): row for row in map(json.loads, (DATA / name).read_text("utf-8").splitlines())}


PAIRS = [
    (row["time"], run)
    for key, row in rows("whole_predictions.jsonl").items()
    if (run := rows("whole_runs.jsonl").get(key)) is not None
]


def test_five_jobs_a_round():
    assert len(PAIRS) == 10
    assert all(told["steps"] == ran["steps"] for told, ran in PAIRS)


def test_every_job_ended_within_its_range():
    assert all(told["total_range_s"][0] <= ran["process_s"] <= told["total_range_s"][1] for told, ran in PAIRS)


def test_wall_time():
    """Ten per cent in the median; the four that miss it by more spend a third of their time on lengths not seen before,
    which goes as the host's speed."""
    errors = {(ran["round"], ran["id"]): told["total_s"] / ran["process_s"] - 1 for told, ran in PAIRS}
    assert median(abs(error) for error in errors.values()) < 0.10
    missed = {key for key, error in errors.items() if abs(error) > 0.10}
    assert missed == {(1, "grouped"), (1, "multiple"), (2, "random"), (2, "grouped")}
