"""Jobs and configs anyone may write have an end: what would take minutes or gigabytes is refused by its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.errors import NotResolved, Unsupported, UsageError
from tunecast.job import job_from_dict
from tunecast.job.job import Data
from tunecast.job.lengths import sample_lengths
from tunecast.job.model import model_config
from tunecast.job.registry import bundled_config
from tunecast.predict.prediction import Memory, Prediction
from tunecast.tape.build.short import require_compilable


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": list(range(1, 1001))}, r"lengths: got 1000 lengths, 1000 different; .* data\.lengths"),
        ({"lengths": [5, 6] * 5000}, r"lengths: got 10000 lengths, 2 different; .* data\.lengths"),
        ({"seq_len": 9_999_998, "micro_batch": 1_000_000}, r"micro_batch: .* up to 134217728 tokens .* nearest: 13"),
        ({"grad_accum": 1_000_000}, "grad_accum: "),
    ],
)
def test_a_job_has_an_end(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job_from_dict({"model": "gpt2", **fields})


def test_what_is_just_allowed_is_allowed() -> None:
    job_from_dict({"model": "gpt2", "seq_len": 512, "lengths": [1 + i % 128 for i in range(4096)]})
    job_from_dict({"model": "gpt2", "seq_len": 10_000_000, "micro_batch": 13, "grad_accum": 100_000})


def test_a_config_has_an_end() -> None:
    config = bundled_config("llama-3.2-1b")
    assert model_config("m", {**config, "num_hidden_layers": 320}, "config.json").layers == 320
    with pytest.raises(NotResolved, match="num_hidden_layers: got 321"):
        model_config("m", {**config, "num_hidden_layers": 321}, "config.json")
    job = job_from_dict({"model": "m", "compile": True})
    require_compilable(job, {**config, "num_hidden_layers": 128})
    with pytest.raises(Unsupported, match=r"compile: .* of 129 layers; allowed: up to 128"):
        require_compilable(job, {**config, "num_hidden_layers": 129})


def test_counted_lengths_are_not_written_out(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("5,60000000\n9,3\n")
    found = sample_lengths(Data(lengths=str(path)))
    assert found is not None
    assert (found.counts, found.order, found.samples) == (((5, 60_000_000), (9, 3)), None, 60_000_003)
    path.write_text("[5, 9, 5]")
    found = sample_lengths(Data(lengths=str(path)))
    assert found is not None and found.order == (5, 9, 5)


def test_litgpt_needs_a_next_token() -> None:
    with pytest.raises(UsageError, match=r"^seq_len: .* 2 tokens or more"):
        tunecast.prediction({"model": "llama-3.2-1b", "stack": "litgpt", "seq_len": 1, "micro_batch": 1})
    assert tunecast.prediction({"model": "llama-3.2-1b", "stack": "litgpt", "seq_len": 2, "micro_batch": 1})


def test_a_card_without_float8_is_refused() -> None:
    job = {"model": "llama-3.2-1b", "seq_len": 64, "matmul_dtype": "float8"}
    with pytest.raises(UsageError, match=r"^matmul_dtype: got float8 on a100-sxm-80gb, .* To fix: matmul_dtype null"):
        tunecast.prediction({**job, "hardware": {"gpu": "a100-sxm-80gb"}})
    assert tunecast.prediction({**job, "hardware": {"gpu": "h100-sxm-80gb"}})


@pytest.mark.parametrize("gpu", ["rtx-4090", "a100-sxm-80gb", "h100-sxm-80gb"])
def test_no_card_is_used_beyond_its_peak(gpu: str) -> None:
    job = {"model": "qwen3-0.6b", "method": "lora", "seq_len": 1_000_000, "micro_batch": 1, "hardware": {"gpu": gpu}}
    used = tunecast.prediction(job).utilization
    assert used is not None and 0 < used["mfu"] < used["hfu"] <= 1


def test_padding_is_never_negative() -> None:
    said = tunecast.prediction({"model": "gpt2", "micro_batch": 123, "seq_len": 64})
    assert said.time is not None and said.time["padding_fraction"] == 0


@pytest.mark.parametrize(("fits", "least", "fragmented"), [(True, 8, False), (False, 8, True), (False, 12, False)])
def test_json_tells_fragmentation(fits: bool, least: int, fragmented: bool) -> None:
    memory = Memory(1, 2, 3, 4, {}, "forward", {})
    said = Prediction(None, "analytic", memory, fits, fits, capacity_bytes=10, smallest_capacity_bytes=least)
    assert said.to_dict()["fragmented"] is fragmented
