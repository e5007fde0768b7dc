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
from tunecast.prediction.engines import predict
from tunecast.records import replace
from tunecast.tape.build.layer_rhythm import require_compilable
from tunecast.units import MIB

pytestmark = pytest.mark.whole


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
        tunecast.predict({"model": "llama-3.2-1b", "stack": "litgpt", "seq_len": 1, "micro_batch": 1})
    assert tunecast.predict({"model": "llama-3.2-1b", "stack": "litgpt", "seq_len": 2, "micro_batch": 1})


def test_a_card_without_float8_is_refused() -> None:
    job = {"model": "llama-3.2-1b", "seq_len": 64, "matmul_dtype": "float8"}
    with pytest.raises(UsageError, match=r"^matmul_dtype: got float8 on a100-sxm-80gb, .* To fix: matmul_dtype null"):
        tunecast.predict({**job, "hardware": {"gpu": "a100-sxm-80gb"}})
    assert tunecast.predict({**job, "hardware": {"gpu": "h100-sxm-80gb"}})


@pytest.mark.parametrize("gpu", ["rtx-4090", "a100-sxm-80gb", "h100-sxm-80gb"])
def test_no_card_is_used_beyond_its_peak(gpu: str) -> None:
    job = {"model": "qwen3-0.6b", "method": "lora", "seq_len": 1_000_000, "micro_batch": 1, "hardware": {"gpu": gpu}}
    used = tunecast.predict(job).utilization
    assert used is not None and 0 < used.mfu < used.hfu <= 1


def test_padding_is_never_negative() -> None:
    said = tunecast.predict({"model": "gpt2", "micro_batch": 123, "seq_len": 64})
    assert said.time is not None and said.time.padding_fraction == 0


JOBS = [
    {"model": "qwen2.5-7b", "method": "lora", "micro_batch": 1, "grad_accum": 2, "seq_len": 2048},
    {"model": "llama-3.2-1b", "method": "full", "micro_batch": 2, "seq_len": 1024},
    {"model": "gpt2", "method": "full", "micro_batch": 8, "seq_len": 512, "allocator": "expandable_segments"},
    {"model": "qwen3-0.6b", "method": "qlora", "micro_batch": 4, "lengths": [700, 300, 900, 512, 640, 128, 1000]},
    {"model": "smollm2-360m", "method": "full", "micro_batch": 4, "gradient_checkpointing": False, "seq_len": 777},
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job["model"]))
def test_no_answer_contradicts_itself(job: dict[str, Any]) -> None:
    """`fits` is said of the very capacity; the least capacity beside it lies on the same side."""
    held = predict(job_from_dict(job)).on_card
    least, most = held.smallest_capacity_bytes, held.unlimited.reserved_bytes
    for capacity in range(least - 64 * MIB, most + 64 * MIB, max(2 * MIB, (most - least) // 80 + 1)):
        here = replace(held, capacity_bytes=capacity, limited=held.runs.within(capacity))
        assert here.fits == (here.smallest_capacity_bytes <= capacity)
        assert here.room.verdict == "does not fit" or here.room.needs_bytes <= capacity
        assert here.room.verdict != "does not fit" or here.room.needs_bytes > capacity
        assert not (here.fragmented and here.fits)


def test_a_run_that_less_would_do_for_is_called_fragmented() -> None:
    """With these releases it completes with 19.18 GiB, not with 19.19, again with 19.21."""
    releases = {"torch_version": "2.11.0", "transformers_version": "5.17.0"}
    job = {**JOBS[0], **releases, "hardware": {"gpu": "rtx-4090", "capacity_bytes": int(19.195 * 2**30)}}
    said = tunecast.predict(job).to_dict()
    assert (said["fits"], said["fragmented"]) == (False, True)
    assert said["smallest_capacity_bytes"] > said["capacity_bytes"]
