"""The measured runs most like a job: a distance that can be added up on paper, and what ships."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest

from tunecast.learn.comparing import compare_runs, errors_of, traits_of_record
from tunecast.learn.record import run_from
from tunecast.learn.shipped import shipped_records
from tunecast.prediction.lessons.nearest import (
    ErrorRange,
    LikeRuns,
    NearRun,
    RunTraits,
    distance,
    like_runs,
    middle,
    near,
    shipped,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
H200 = RunTraits(
    "h200-sxm-141gb", "Hopper", "accelerate", "one", "16 bits", "lora", "language", "m", 32.0, 11.0, recomputes=True
)


@pytest.mark.parametrize(
    ("changes", "far"),
    [
        ({}, 0.0),
        ({"card": "h100-sxm-80gb"}, 1.0),
        ({"card": "a100-sxm-80gb", "generation": "Ampere"}, 2.0),
        ({"family": "megatron"}, 1.5),
        ({"cards": "several"}, 1.5),
        ({"precision": "8 or 4 bits"}, 2.0),
        ({"method": "full"}, 0.5),
        ({"method": "qlora"}, 1.0),
        ({"task": "other"}, 1.5),
        ({"model": "twice as large", "size": 33.0}, 0.5),
        ({"model": "of unknown size", "size": None}, 1.0),
        ({"model": "m", "size": 40.0}, 0.0),
        ({"tokens": 13.0}, 0.5),
        ({"recomputes": False}, 0.25),
        ({"family": "megatron", "tokens": 10.0, "recomputes": False}, 2.0),
    ],
)
def test_distances_add(changes: dict[str, Any], far: float) -> None:
    other = H200._replace(**changes)
    assert distance(H200, other) == distance(other, H200) == far


def test_memory_is_compared_within_the_stack_and_time_on_the_card() -> None:
    runs = [
        *(NearRun(f"card {n}", H200._replace(family="torchtune"), 0.5, 0.01 * n) for n in range(4)),
        *(NearRun(f"stack {n}", H200._replace(card="h100-sxm-80gb"), 0.02 * n, 0.5) for n in range(4)),
    ]
    found = like_runs(H200, near(H200, runs))
    assert found.memory == ErrorRange(4, 0.0, 0.06)
    assert found.time == ErrorRange(4, 0.0, 0.03)
    assert found.words == "4 runs like yours: memory 0 to +6 %, time 0 to +3 %"


def test_the_middle_of_twelve_leaves_one_out_at_either_end() -> None:
    assert middle([n / 100 for n in range(-6, 6)]) == ErrorRange(12, -0.05, 0.04)
    assert middle([0.1, 0.2]) is None
    assert LikeRuns((), ()).words == ""


def test_a_job_on_the_measured_card_finds_its_own_run_first() -> None:
    asked = H200._replace(model="llama-3.1-8b", size=32.6, tokens=13.0)
    found = like_runs(asked, shipped(asked))
    assert len(found.time_runs) == len(found.memory_runs) == 12
    assert found.time_runs[0].traits.model == "llama-3.1-8b" and found.time_runs[0].distance == 0.0
    assert found.memory is not None and abs(found.memory.high) < 0.01


def test_nothing_is_like_a_job_of_a_kind_nobody_measured() -> None:
    asked = H200._replace(family="nobody's", card="nothing", generation="none", task="rollouts", method="qlora")
    assert like_runs(asked, shipped(asked)) == LikeRuns((), ())


def test_runs_of_the_store_stand_beside_those_that_ship() -> None:
    from tunecast.job import job_from_dict
    from tunecast.job.further import models_of

    job = job_from_dict({"model": "llama-3.1-8b", "method": "lora", "seq_len": 1024, "hardware": {"gpu": "rtx-4090"}})
    own = [
        {
            "id": f"{n:032x}", "state": "done", "job": job.to_dict(), "hardware": {"gpu": "rtx-4090"},
            "memory": {"reserved_bytes": 101}, "time": {"step_s": 1.0 + n / 100},
            "predicted": {"reserved_bytes": 100, "step_s": 1.0},
        }
        for n in range(3)
    ]  # fmt: skip
    found = compare_runs(job, models_of(job), own)
    assert (found.own_runs, found.time) == (3, ErrorRange(3, 0.0, pytest.approx(0.02)))  # type: ignore[arg-type]
    assert [run.origin for run in found.runs[:3]] == ["yours"] * 3
    assert found.to_dict()["runs"][0]["distance"] == 0.0
    assert compare_runs(job, models_of(job)).time is None


def test_a_record_without_job_or_card_is_not_compared() -> None:
    assert traits_of_record({"job": None, "hardware": {"gpu": "rtx-4090"}}) is None
    assert traits_of_record({"job": {"model": "x"}, "hardware": {"gpu": None}}) is None
    assert traits_of_record({"job": {"model": "x"}, "hardware": {"gpu": "no-such-card"}}) is None
    assert errors_of({"state": "oom", "memory": {"reserved_bytes": 1}, "predicted": {"reserved_bytes": 1}}) == (
        None,
        None,
    )


@pytest.mark.whole
def test_what_ships_is_what_the_repository_measured() -> None:
    """A rebuild equals it, and every record passes as anybody's would."""
    import shipped_runs

    found = shipped_runs.records()
    assert gzip.decompress(shipped_runs.RECORDS.read_bytes()) == shipped_runs.lines(found)
    assert shipped_runs.TABLE.read_text() == shipped_runs.table(found)
    read = [run_from(each).to_dict() for each in shipped_records()]
    assert read == found
    assert len({each["id"] for each in found}) == len(found) > 1000
    assert all(each["source"] == "shipped" and (each["hardware"] or {}).get("host") is None for each in found)


def test_the_package_stays_small() -> None:
    import shipped_runs

    assert shipped_runs.RECORDS.stat().st_size < 150_000 and shipped_runs.TABLE.stat().st_size < 150_000


@pytest.mark.whole
def test_shares_are_those_of_the_committed_residuals() -> None:
    import learning_spreads

    assert learning_spreads.TABLE.read_text() == learning_spreads.written(
        learning_spreads.priors(learning_spreads.rows())
    )
