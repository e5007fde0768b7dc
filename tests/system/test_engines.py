"""What SkyPilot, dstack and lyceum made of the rendered jobs is committed: of these cases, by the pinned releases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from engines.cases import CASES, DEAR, OPTIONS  # noqa: E402
from engines.catalogue import write_catalogue  # noqa: E402

PACKAGES = {"skypilot": "skypilot", "dstack": "dstack", "lyceum": "lyceum-cli"}


def result() -> Any:
    return json.loads((HERE / "results" / "engines.json").read_text("utf-8"))


def test_cases_are_as_many_kinds_as_are_launched() -> None:
    assert len(CASES) >= 12
    assert {"full", "lora", "qlora"} <= {case.fields["method"] for case in CASES}
    assert any(case.fields.get("task") == "dpo" for case in CASES)
    assert {1, 2} <= {case.fields.get("nodes", 1) for case in CASES}
    assert any(case.plan and case.plan.get("spot") for case in CASES)


@pytest.mark.parametrize("engine", OPTIONS)
def test_each_case_was_accepted_by_the_pinned_release(engine: str) -> None:
    found = result()["engines"][engine]
    pinned = (HERE.parent / "environments" / f"{engine}.txt").read_text("utf-8")
    assert f"{PACKAGES[engine]}=={found['release']}" in pinned.split()
    refused = {row["case"] for row in found["refused"]}
    assert {row["case"] for row in found["cases"]} | refused == {case.name for case in CASES}
    assert refused == ({"two nodes"} if engine == "lyceum" else set())
    assert all(row["wrong"] == [] for row in found["cases"])


def test_skypilot_ranks_by_the_predicted_time() -> None:
    rows = {row["case"]: row for row in result()["engines"]["skypilot"]["cases"]}
    dear = rows[DEAR]
    assert dear["by_time"].startswith("1 x RTX5090") and dear["by_hour"].startswith("1 x RTX3090")
    assert dear["chosen"] == dear["by_time"]
    assert rows["spot"]["spot"] and rows["spot"]["file"] == "managed.yaml"


def test_a_list_of_skypilots_has_every_cloud_with_offers(tmp_path: Path) -> None:
    counts = write_catalogue(tmp_path)
    assert {"aws", "gcp", "lambda", "runpod"} <= set(counts)
    assert (tmp_path / "runpod" / "vms.csv").read_text().startswith("InstanceType,vCPUs,MemoryGiB,AcceleratorName,")
