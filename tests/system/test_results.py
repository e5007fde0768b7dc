"""What `./dev system` found is committed, with its day, its commit and its inputs; and it found nothing."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from vscode.__main__ import sources

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "system" / "results"
RUNS = re.findall(r"^    system_runs=\(([a-z ]+)\)$", (ROOT / "dev").read_text("utf-8"), re.MULTILINE)[0].split()


def result_of(name: str) -> Any:
    path = RESULTS / f"{name}.json"
    assert path.exists(), f"To fix: ./dev system {name} --out {path.relative_to(ROOT)}"
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("name", RUNS)
def test_it_says_when_of_what_and_over_which_inputs_and_found_nothing(name: str) -> None:
    result = result_of(name)
    assert date(2026, 11, 1) < date.fromisoformat(result["date"])
    assert re.fullmatch("[0-9a-f]{40}", result["commit"])
    assert result["inputs"]
    assert result["failures"] == []


def test_there_is_no_result_of_anything_else() -> None:
    assert {path.stem for path in RESULTS.iterdir()} <= set(RUNS)


def test_unchanged_was_asked_of_what_is_recorded_now() -> None:
    inputs = result_of("unchanged")["inputs"]
    assert inputs["sha256"] == hashlib.sha256((ROOT / inputs["file"]).read_bytes()).hexdigest()
    assert inputs["jobs"] >= 300 and inputs["plans"] >= 10


def test_launches_were_killed_before_and_after_they_started_anything() -> None:
    result = result_of("kills")
    assert result["inputs"]["kills"] >= 100 and sum(result["left"].values()) == result["inputs"]["kills"]
    assert {"nothing", "no job", "a job"} <= set(result["left"])


def test_launches_were_as_many_as_they_are_now() -> None:
    inputs = result_of("launches")["inputs"]
    assert inputs["launches"] == 200 and inputs["killed"] == 100
    after = {name: count for name, count in inputs.items() if name.startswith("jobs after the kill")}
    assert sum(after.values()) >= 100 and len(after) > 2, "before, while and after jobs were submitted"
    assert min(inputs[f"cancelled while {state}"] for state in ("queued", "running")) >= 20


def test_the_store_was_tried_as_it_is_now() -> None:
    result = result_of("losses")
    assert result["inputs"]["kills"] >= 500 and result["inputs"]["at_once"] >= 32
    scenes = result["scenes"]
    for engine in ("sqlite", "postgresql"):
        assert scenes[f"{engine}, killed"]["kills"] >= 500 and scenes[f"{engine}, killed"]["acknowledged"] >= 500
    assert scenes["sqlite, disk full"]["refused"] >= 20 and scenes["postgresql, disk full"]["waited"] > 0
    assert scenes["postgresql, lost"]["crashes"] >= 10
    assert scenes["postgresql, lost"]["acknowledged while it was away"] > 0


def test_the_page_was_walked_as_it_is_now() -> None:
    result, sources = result_of("page"), ROOT / "src" / "tunecast" / "web" / "static" / "sources.sha256"
    assert result["inputs"]["sources"] == hashlib.sha256(sources.read_bytes()).hexdigest()
    assert len(result["passed"]) == result["inputs"]["journeys"] >= 15


def test_every_address_of_the_api_was_asked() -> None:
    from tunecast.web.api.openapi import document

    apart = {"/api/runs/live", "/api/openapi.json"}  # which never ends, and what is read to know what to ask
    assert result_of("api")["inputs"]["operations"] == len(document()["paths"].keys() - apart)


def test_the_extension_was_used_as_it_is_now() -> None:
    result = result_of("vscode")
    assert result["inputs"]["sources"] == sources()
    assert len(result["passed"]) == result["inputs"]["journeys"] >= 8


def test_files_were_edited_a_hundred_thousand_times_while_memory_stayed_flat() -> None:
    result = result_of("editor")
    assert result["inputs"]["edits"] >= 100_000
    server, worker = result["memory_mib"]["server"], result["memory_mib"]["worker"]
    assert server[-1] <= 1.05 * server[0] and worker[-1] <= 1.1 * worker[len(worker) // 2]


def test_long_tests_are_there() -> None:
    for name in result_of("long")["inputs"]:
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text("utf-8"), name
