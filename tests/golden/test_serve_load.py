"""The committed result of benchmarks/serve_load.py: nothing was lost, nothing was left running."""

from __future__ import annotations

import json
from pathlib import Path

RESULT = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "serve_load.json").read_text("utf-8"))


def test_no_answer_is_lost() -> None:
    for name, least in (("predictions", 200), ("plans", 20)):
        told = RESULT["at_once"][name]
        assert told["asked"] == told["answered"] >= least


def test_memory_is_flat_over_ten_thousand_requests() -> None:
    """Of small models, after lanes have filled their room: the second half grows by less than 5 %."""
    told = RESULT["small"]
    assert told["requests"] >= 10_000 and told["failed"] == 0
    assert told["growth_of_second_half_mib"] < 0.05 * told["memory_mib"][-1]


def test_processes_end_with_their_clients() -> None:
    assert RESULT["leaving"]["plans"] >= 5 and RESULT["leaving"]["processes_left"] == 0
