"""Whole jobs of the Trainer, each predicted and written down before it ran: four rounds on four hosts of an H200, from
the third on with and without what `tunecast calibrate` had just measured there."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


RUNS = {(run["round"], run["id"]): run for run in rows("whole_runs.jsonl")}
TOLD = {
    (row["round"], row["id"], row.get("calibrated", False)): row["time"]
    for row in rows("whole_predictions.jsonl")
    if (row["round"], row["id"]) in RUNS
}


def errors(rounds: tuple[int, ...], calibrated: bool) -> dict[tuple[int, str], float]:
    return {
        (number, name): told["total_s"] / RUNS[number, name]["process_s"] - 1
        for (number, name, known), told in TOLD.items()
        if number in rounds and known is calibrated
    }


def missed(found: dict[tuple[int, str], float]) -> set[tuple[int, str]]:
    return {key for key, error in found.items() if abs(error) > 0.10}


def test_five_jobs_a_round():
    assert [len(errors((number,), False)) for number in (1, 2, 3, 4)] == [5, 5, 5, 5]
    assert [len(errors((number,), True)) for number in (3, 4)] == [5, 5]
    assert all(told["steps"] == RUNS[number, name]["steps"] for (number, name, _), told in TOLD.items())


def test_all_but_one_ended_within_their_range():
    """The first program of round 4: a calibration's range of starts is that of two."""
    outside = {
        key
        for key, told in TOLD.items()
        if not told["total_range_s"][0] <= RUNS[key[:2]]["process_s"] <= told["total_range_s"][1]
    }
    assert outside == {(4, "twice", True)}


def test_wall_time_of_the_first_two_rounds():
    """The four that miss by more than 10 % spend a third of their time on lengths not seen before, which goes as the
    host's speed."""
    found = errors((1, 2), False)
    assert median(map(abs, found.values())) < 0.10
    assert missed(found) == {(1, "grouped"), (1, "multiple"), (2, "random"), (2, "grouped")}


def test_wall_time_of_the_third():
    """A slow host: without its calibration nothing is near. With it the two with checkpointing miss: recomputation
    plans attention once more in its own thread, which predictions know since."""
    assert len(missed(errors((3,), False))) == 5
    found = errors((3,), True)
    assert median(map(abs, found.values())) < 0.10
    assert missed(found) == {(3, "qlora"), (3, "recomputed")}


def test_wall_time_of_the_fourth():
    """A host as the constants have it. Its calibration met a fast minute: the program it started last took 14 s, those
    that followed 15 to 19. The first of them also trained 3 s longer, for a reason that is not known."""
    assert missed(errors((4,), False)) == {(4, "twice")}
    assert missed(errors((4,), True)) == {(4, "twice"), (4, "chinchilla")}
