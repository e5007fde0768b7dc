"""Host memory of ranks that the Trainer loaded a model on under FSDP 2 (benchmarks/sharded_loading.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.job import Job, job_from_dict
from tunecast.prediction.outside.checkpoint import Parameter, optimizer_states, weights_bytes
from tunecast.prediction.outside.loading import Stored, host_bytes
from tunecast.prediction.outside.saving import Saving
from tunecast.prediction.outside.sharded_files import as_sharded, fsdp_loading_bytes, fsdp_saving, others_loading_bytes

RUNS = Path(__file__).parents[2] / "benchmarks" / "data" / "sharded_loading.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in RUNS.read_text("utf-8").splitlines()]
FULL = [row for row in ROWS if row["method"] == "full"]
RANKS = 2
OVER = 0.1
"""Of what is measured: on CPUs a rank's own tensors, and whole ones that a card would hold, are in it."""


def job_of(row: dict[str, Any]) -> Job:
    kind, saves = row["cpu_ram_efficient_loading"], row["saves"]
    parallel = {"data": "fsdp", "cpu_ram_efficient_loading": kind != "false", "load_on_rank_0": kind == "empty"}
    parallel["state_dict_type"] = "sharded" if saves == "sharded" else "full"
    told = {name: row[name] for name in ("method", "weights_dtype", "autocast")}
    run = {"save_only_model": saves == "save_only_model"}
    spread = {"hardware": {"gpus": RANKS}, "parallel": parallel, "optimizer": "adamw_torch", "run": run}
    return job_from_dict({"model": "llama-3.2-1b", **told, **spread})


def loaded(row: dict[str, Any]) -> tuple[list[Parameter], int]:
    """As if all weights were one; adapters are too small to count."""
    base = [Parameter("weight", (row["parameters"],), row["weights_dtype"], row["method"] == "full")]
    return base, host_bytes(base, row["weights_dtype"], Stored(device_map=False))


def name_of(row: dict[str, Any]) -> str:
    parts = ("cpu_ram_efficient_loading", "method", "weights_dtype", "saves", "rank")
    return "-".join(str(row[name]) for name in parts if row[name] != "")


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_from_pretrained(row: dict[str, Any]) -> None:
    """The first rank as ever; another one nothing, or zeros of all weights on top."""
    base, of = loaded(row)
    expected = of
    if row["rank"] and row["cpu_ram_efficient_loading"] != "false":
        expected = 0 if row["cpu_ram_efficient_loading"] == "empty" else of + weights_bytes(base)
    assert row["loading_bytes"] == pytest.approx(expected, rel=0.01, abs=5_000_000)


@pytest.mark.parametrize("row", [row for row in FULL if row["cpu_ram_efficient_loading"] != "empty"], ids=name_of)
def test_what_a_rank_needs_until_the_model_is_cut(row: dict[str, Any]) -> None:
    job, (base, of) = job_of(row), loaded(row)
    cast = as_sharded(job, base)
    part = weights_bytes(cast) // RANKS
    first, other = fsdp_loading_bytes(of, base, cast), others_loading_bytes(job, of, base, cast)
    measured = max(row["loading_bytes"], row["preparing_bytes"] - part)
    assert 0 <= measured - (other if row["rank"] else first) <= OVER * measured


@pytest.mark.parametrize("row", [row for row in FULL if row["rank"] == 0], ids=name_of)
def test_what_the_first_rank_gathers_to_save(row: dict[str, Any]) -> None:
    job, (base, _) = job_of(row), loaded(row)
    cast = as_sharded(job, base)
    states = [] if job.run.save_only_model else optimizer_states(job.optimizer, cast)
    if row["saves"] == "sharded":
        assert row["saving_bytes"] < 0.01 * weights_bytes(cast)
        return
    said = fsdp_saving(job, Saving(0, 0), cast, states, RANKS).host_bytes
    assert 0 <= row["saving_bytes"] - said <= OVER * said


def test_weights_that_are_sent_train_as_those_that_every_rank_loads() -> None:
    trained = {row["trained_norm"] for row in FULL if "trained_norm" in row}
    assert len(trained) == 1
