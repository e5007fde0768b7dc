"""What `./dev system fuzz` found over all doors (results/fuzz.json): nothing that is not documented."""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from fuzz.doors import DOORS  # noqa: E402
from fuzz.outcomes import FAILURES  # noqa: E402

FOUND = json.loads((HERE / "results" / "fuzz.json").read_text("utf-8"))


def test_every_door_was_tried() -> None:
    assert {row["door"] for row in FOUND["doors"]} == set(DOORS)
    assert sum(row["inputs"] for row in FOUND["doors"]) == FOUND["inputs"]


def test_no_input_ended_it_otherwise_than_documented() -> None:
    assert FOUND["failures"] == []
    assert not [row for row in FOUND["doors"] if FAILURES & set(row["outcomes"])]


def test_every_input_kept_to_its_bounds() -> None:
    assert all(row["slowest_s"] <= row["most_cpu_s"] for row in FOUND["doors"])
    assert all(row["peak_bytes"] <= FOUND["most_bytes"] for row in FOUND["doors"])
