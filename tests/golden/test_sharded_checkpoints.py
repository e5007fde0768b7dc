"""Checkpoints that the Trainer wrote in parts (benchmarks/sharded_checkpoints.py), file by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.job import Job, job_from_dict
from tunecast.job.model import resolve_model
from tunecast.prediction.outside.checkpoint import (
    SMALL_FILES_OF_MODEL_BYTES,
    Parameter,
    optimizer_file_bytes,
    optimizer_states,
    safetensors_bytes,
    saved_parameters,
    weights_bytes,
)
from tunecast.prediction.outside.needs import outside_of
from tunecast.prediction.outside.sharded_files import (
    PART_BYTES,
    again_bytes,
    as_sharded,
    as_zero,
    fsdp_disk_bytes,
    partitioned_bytes,
)

RUNS = Path(__file__).parents[2] / "benchmarks" / "data" / "sharded_checkpoints.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in RUNS.read_text("utf-8").splitlines()]
ZERO = [row for row in ROWS if row["data"] != "fsdp"]
FSDP = [row for row in ROWS if row["data"] == "fsdp" and not row.keys() & {"state_dict_type", "save_only_model"}]
PARTS = [row for row in ROWS if row.get("state_dict_type") == "sharded"]
ALONE = [row for row in ROWS if row.get("save_only_model")]
RANKS = 2
AROUND_BYTES = 17_000
"""Names, shapes and configuration in a file of DeepSpeed's."""


def job_of(row: dict[str, Any], **more: Any) -> Job:
    lora = {"lora": {"rank": 8, "targets": ["q_proj", "v_proj"]}} if row["method"] == "lora" else {}
    told = {name: row[name] for name in ("method", "weights_dtype", "autocast")} | {"model": "llama-3.2-1b"}
    spread = {"hardware": {"gpus": RANKS}, "parallel": {"data": row["data"]}, "optimizer": "adamw_torch"}
    return job_from_dict({**told, **lora, **spread, **more})


def name_of(row: dict[str, Any]) -> str:
    return f"{row['data']}-{row['method']}-{row['autocast']}"


def spread_of(row: dict[str, Any]) -> dict[str, Any]:
    return {"data": row["data"], "state_dict_type": row.get("state_dict_type", "full")}


def tensors(method: str, dtype: str = "float32") -> list[Parameter]:
    """The model of the runs: 64 wide, three layers, 4 heads of which 2 for keys, 512 entries."""
    head = "base_model.model." if method == "lora" else ""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (512, 64)}
    for layer in range(3):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}self_attn.q_proj.weight": (64, 64), f"{at}self_attn.k_proj.weight": (32, 64)}
        shapes |= {f"{at}self_attn.v_proj.weight": (32, 64), f"{at}self_attn.o_proj.weight": (64, 64)}
        shapes |= {f"{at}mlp.gate_proj.weight": (160, 64), f"{at}mlp.up_proj.weight": (160, 64)}
        shapes |= {f"{at}mlp.down_proj.weight": (64, 160)}
        shapes |= {f"{at}input_layernorm.weight": (64,), f"{at}post_attention_layernorm.weight": (64,)}
    shapes |= {"model.norm.weight": (64,), "lm_head.weight": (512, 64)}
    base = [Parameter(f"{head}{name}", shape, dtype, method == "full") for name, shape in shapes.items()]
    if method == "full":
        return base
    adapters = []
    for name, shape in shapes.items():
        if ".q_proj." in name or ".v_proj." in name:
            at = head + name.removesuffix("weight")
            adapters.append(Parameter(f"{at}lora_A.default.weight", (8, shape[1]), "float32", True))
            adapters.append(Parameter(f"{at}lora_B.default.weight", (shape[0], 8), "float32", True))
    return [*base, *adapters]


@pytest.mark.parametrize("row", ZERO, ids=name_of)
def test_the_weights_to_the_byte(row):
    file = "model.safetensors" if row["method"] == "full" else "adapter_model.safetensors"
    held = as_zero(job_of(row), tensors(row["method"]))
    assert safetensors_bytes(saved_parameters(held)) == row["files"][file]


@pytest.mark.parametrize("row", ZERO, ids=name_of)
def test_masters_state_and_the_weights_once_more(row):
    held = as_zero(job_of(row), tensors(row["method"]))
    files = row["files"]
    states = [nbytes for name, nbytes in files.items() if "optim_states" in name]
    assert len(states) == RANKS
    assert 0 < sum(states) - partitioned_bytes(job_of(row), held) < RANKS * AROUND_BYTES
    again = sum(nbytes for name, nbytes in files.items() if "model_states" in name)
    assert 0 < again - again_bytes(job_of(row), held) < (RANKS if row["data"] == "zero3" else 1) * AROUND_BYTES


@pytest.mark.parametrize("row", FSDP, ids=name_of)
def test_fsdp_writes_the_weights_twice_and_the_optimizer(row):
    held = as_sharded(job_of(row), tensors(row["method"], "bfloat16"))
    files, saved = row["files"], saved_parameters(held)
    file = "model.safetensors" if row["method"] == "full" else "adapter_model.safetensors"
    assert safetensors_bytes(saved) == files[file]
    assert 0 < files["pytorch_model_fsdp.bin"] - weights_bytes(saved) < AROUND_BYTES
    states = optimizer_states("adamw_torch", held)
    assert abs(files["optimizer.bin"] - optimizer_file_bytes(states)) < AROUND_BYTES


@pytest.mark.parametrize("row", PARTS, ids=name_of)
def test_fsdp_writes_parts_of_each_rank(row):
    """What is around a part is known to 5 %, names, shapes and the optimizer's settings are left out."""
    job = job_of(row, parallel=spread_of(row))
    held = as_sharded(job, tensors(row["method"], "bfloat16"))
    weights, others = fsdp_disk_bytes(job, held, 0, RANKS)
    files, around = row["files"], len(saved_parameters(held)) * RANKS * PART_BYTES
    wrote = {
        folder: [n for name, n in files.items() if name.startswith(folder) and name.endswith(".distcp")]
        for folder in ("pytorch_model_fsdp_0", "optimizer_0")
    }
    assert [len(each) for each in wrote.values()] == [RANKS, RANKS]
    assert sum(wrote["pytorch_model_fsdp_0"]) == pytest.approx(weights, abs=0.05 * around)
    assert 0 < sum(wrote["optimizer_0"]) - others < around
    assert not any("safetensors" in name for name in files)


@pytest.mark.parametrize("row", ALONE, ids=name_of)
def test_the_model_alone(row):
    job = job_of(row, run={"save_only_model": True})
    held = as_sharded(job, tensors(row["method"], "bfloat16"))
    weights, others = safetensors_bytes(saved_parameters(held)), fsdp_disk_bytes(job, held, 0, RANKS)
    file = "model.safetensors" if row["method"] == "full" else "adapter_model.safetensors"
    assert (row["files"][file], others) == (weights, (0, 0))
    assert sum(row["files"].values()) - weights == pytest.approx(SMALL_FILES_OF_MODEL_BYTES, rel=0.5)


def test_a_whole_job_under_zero():
    """Llama 3.2 1B, 1,235,814,400 weights: 2 bytes in the first file, 2 in the second but under ZeRO 3, and 12."""
    model, weights = resolve_model("llama-3.2-1b"), 1_235_814_400
    for data, each in (("zero1", 16), ("zero2", 16), ("zero3", 14)):
        asked = {"data": data, "method": "full", "weights_dtype": "float32", "autocast": "bfloat16"}
        said = outside_of(job_of(asked, hardware={"gpus": 8}), model)
        assert said.disk.weights_bytes == pytest.approx(2 * weights, rel=1e-3)
        assert said.disk.checkpoint_bytes == pytest.approx(each * weights, rel=1e-3)
        assert said.saving.host_bytes == 2 * weights
        assert said.resuming.host_bytes == pytest.approx((12 / 8 + each - 14) * weights, rel=1e-3)
        assert said.published is not None
        told = said.published.to_dict()
        assert told["evaluation"] is None
        assert told["loading"]["card_allocated_bytes"] is told["saving"]["card_bytes"] is None
        assert told["loading"]["host_mapped_bytes"] == 2 * weights
