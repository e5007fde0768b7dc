"""The promises about a step's time, on the committed result of the whole benchmark, and on a few runs predicted now."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import figures  # noqa: E402
import time_h200  # noqa: E402
import time_ranges  # noqa: E402

RESULT = figures.load("time_h200.json")
MEDIAN, P90 = 0.04, 0.12


def rows(source: str, *kinds: str) -> list[dict[str, Any]]:
    return [row for row in RESULT["rows"] if row["set"] == source and row["kind"] in kinds]


@pytest.mark.parametrize("name", ["error", "left_out_error"])
def test_steps_on_the_h200(name: str) -> None:
    """Of the longer runs where there are two; mixed lengths apart."""
    sizes = sorted(abs(row[name]) for row in rows("h200_runs", "fixed length", "compiled"))
    assert len(sizes) == 50
    assert statistics.median(sizes) <= MEDIAN
    assert sizes[int(0.9 * len(sizes))] <= P90


def test_every_timed_run_is_answered() -> None:
    assert not [row["id"] for row in RESULT["rows"] if "refused" in row]
    lines = (BENCHMARKS / "data" / "h200_runs.jsonl").read_text().splitlines()
    names = {line["id"]: line for line in (json.loads(text)["job"] for text in lines)}
    timed = [json.loads(text) for text in lines if json.loads(text)["measured"].get("step_s")]
    wanted = {row["job"]["id"] for row in timed if row["job"]["id"] + time_h200.LONGER not in names}
    assert {row["id"] for row in RESULT["rows"] if row["set"] == "h200_runs"} == wanted


def test_runs_nobody_fitted_the_card_to() -> None:
    """Drawn at random for memory; where the host is not what they wait for."""
    sizes = [
        abs(row["error"])
        for source in time_h200.DRAWN
        for row in rows(source, "fixed length")
        if row["waits_for"] == "card"
    ]
    assert len(sizes) >= 15
    assert statistics.median(sizes) <= 0.05


FOUND = time_ranges.residuals()
TABLE = time_ranges.bands(FOUND)


def test_the_table_is_that_of_the_committed_results() -> None:
    assert time_ranges.TABLE.read_text() == time_ranges.written(TABLE)


def test_ranges_hold_with_the_model_left_out() -> None:
    for name, band in TABLE.items():
        assert band.covered is None or band.covered >= 0.75, name
        assert band.runs >= time_ranges.FEWEST and 0 <= band.below < 0.35 and 0 < band.above < 0.6, name


@pytest.mark.parametrize("group", list(time_ranges.held(FOUND, TABLE)), ids=lambda group: group.group)
def test_ranges_hold_in_every_group(group: time_ranges.Held) -> None:
    """Of ten steps or more, by card, stacks, source and what is waited for."""
    assert group.inside >= 0.75
    most = 0.10 if group.group == "source: own runs" else 0.25
    assert group.half_width <= most or group.group == "waits for: host"


NOW = {
    "llama-3.1-8b-lora-b4s2048-ckpt": 0.04,
    "llama-3.1-8b-qlora-b4s2048-ckpt": 0.05,
    "llama-3.2-1b-full-b4s2048": 0.04,
    "llama-3.1-8b-full-b1s2048-ckpt-optimizer=adamw8bit": 0.04,
    "llama-3.1-8b-lora-b1s512-25steps": 0.15,
}


@pytest.mark.parametrize("name", NOW)
def test_predicted_now(name: str) -> None:
    (run,) = (run for run in time_h200.runs(name) if isinstance(run, time_h200.Run) and run.job.id == name)
    assert run.predicted_s({}) == pytest.approx(run.measured_s, rel=NOW[name])
    (committed,) = (row for row in RESULT["rows"] if row["id"] == name)
    assert run.predicted_s({}) == pytest.approx(committed["predicted_s"], rel=0.01)
