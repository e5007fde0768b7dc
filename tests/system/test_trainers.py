"""The results of ./dev system trainers and trainjobs are of the cases that are there, and as expected."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from trainers.cases import CASES, Case  # noqa: E402
from trainers.one import resumed_at  # noqa: E402

RESULT = json.loads((HERE / "results" / "trainers.json").read_text("utf-8"))
ROWS = {(row["framework"], row["name"]): row for row in RESULT["trainings"]}
OBJECTS = json.loads((HERE / "results" / "trainjobs.json").read_text("utf-8"))


def test_every_case_was_run() -> None:
    assert list(ROWS) == [(case.framework, case.name) for case in CASES]
    assert set(RESULT["releases"]) == {case.framework for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.framework}-{case.name}")
def test_it_trained_and_needs_what_was_predicted(case: Case) -> None:
    row = ROWS[case.framework, case.name]
    assert row["trained"] == (f"{case.steps} steps" if case.trained else case.why)
    assert row["resumed"] == case.resumed
    assert bool(row["traced_bytes"]) == case.traced
    assert row["difference"] == case.difference


def test_where_a_run_goes_on() -> None:
    assert resumed_at(" 67%|## | 2/3 [00:00<?]\r100%|###| 3/3 [00:01]") == "after step 1"
    assert resumed_at("2|1|Loss: 5.5: 3%| 1/32 [00:00]") == "in epoch 2"
    assert resumed_at("0%| | 0/3 [00:00]") == "no step was made"


def test_objects_for_kubernetes_were_accepted() -> None:
    """By the published models and schemas, and by a real API server, on which a job was started, found and stopped."""
    *rendered, life = OBJECTS["objects"]
    assert len(rendered) == 12 and all(row["kinds"][-1] == "TrainJob" for row in rendered)
    assert life["case"] == "a job's life" and OBJECTS["schemas"] and OBJECTS["server"]
    assert all(row["problems"] == [] for row in OBJECTS["objects"])
