"""Megatron Bridge's YAML, which overrides what a recipe's function sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.readers import read_job
from tunecast.job.recipes import Recipe, find_recipe
from tunecast.job.recipes.frameworks import megatron_bridge

OVERRIDES = """\
model:
  seq_length: 4096
  tensor_model_parallel_size: 2
train:
  train_iters: 100
  global_batch_size: 32
  micro_batch_size: 2
  eval_iters: 0
optimizer: {lr: 1e-4}
ddp: {grad_reduce_in_fp32: true}
"""


def recipe(folder: Path, values: dict[str, Any] | None = None, text: str = OVERRIDES) -> Recipe:
    path = folder / "over.yaml"
    path.write_text(text)
    found = find_recipe(path, values)
    assert found is not None
    return found


def unread(found: Recipe) -> set[str]:
    return {each.key for each in found.not_understood}


def test_without_the_function_there_is_no_model(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    assert (found.framework, "model" in found.job, unread(found)) == ("megatron-bridge", False, set())
    with pytest.raises(TunecastError, match=r"that names no model: `run_recipe\.py --recipe NAME` does"):
        read_job(str(tmp_path / "over.yaml"))
    job = read_job(str(tmp_path / "over.yaml"), {"model": "llama-3.1-8b", "hardware.gpus": 8})
    assert (job.stack, job.seq_len, job.grad_accum, job.parallel.tensor) == ("nemo", 4096, 4, 2)


@pytest.mark.parametrize("key", ["freeze_vision_model: false", "use_hf_vision_model: false"])
def test_what_only_a_model_with_a_tower_has_is_of_vision(tmp_path: Path, key: str) -> None:
    assert str(recipe(tmp_path, text=OVERRIDES.replace("model:\n", f"model:\n  {key}\n")).refused).startswith("vision")


@pytest.mark.parametrize(
    ("name", "model", "task", "method"),
    [
        ("llama3_8b_sft_config", "meta-llama/Meta-Llama-3-8B", "sft", "full"),
        ("llama3_8b_16k_pretrain_config", "meta-llama/Meta-Llama-3-8B", "pretrain", "full"),
        ("qwen3_30b_a3b_peft_config", "Qwen/Qwen3-30B-A3B", "sft", "lora"),
        ("a.b.gemma2_2b_pretrain_config", "google/gemma-2-2b", "pretrain", "full"),
    ],
)
def test_a_function_names_its_model(tmp_path: Path, name: str, model: str, task: str, method: str) -> None:
    job = recipe(tmp_path, {"recipe": name}).job
    assert (job["model"], job["task"], job["method"]) == (model, task, method)


def test_a_function_that_is_not_known_is_told(tmp_path: Path) -> None:
    assert unread(recipe(tmp_path, {"recipe": "mine_config"})) == {"recipe"}


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("mixed_precision", "bf16_with_fp8_current_scaling_mixed", "matmul_dtype", "float8"),
        ("mixed_precision", "bf16_with_nvfp4_mixed", "matmul_dtype", "float4"),
        ("model.recompute_granularity", "full", "gradient_checkpointing", True),
        ("ddp.use_distributed_optimizer", False, "parallel.data", "ddp"),
        ("model.expert_model_parallel_size", 4, "parallel.expert", 4),
        ("model.expert_tensor_parallel_size", 1, "parallel.expert_tensor", 1),
        ("model.cross_entropy_loss_fusion", False, "loss", "full"),
        ("checkpoint.save_interval", 20, "run.save_steps", 20),
        ("peft", {"dim": 8}, "lora.rank", 8),
    ],
)
def test_keys(tmp_path: Path, key: str, value: object, field: str, expected: object) -> None:
    found = recipe(tmp_path, {key: value})
    section, _, leaf = field.rpartition(".")
    assert (found.job[section] if section else found.job)[leaf] == expected
    assert unread(found) == set()


def test_other_tasks(tmp_path: Path) -> None:
    assert (recipe(tmp_path, {"model.teacher": {"seq_length": 1}}).refused or "").startswith("distillation")
    assert (recipe(tmp_path, {"recipe": "qwen25_vl_7b_finetune_config"}).refused or "").startswith("vision")


@pytest.mark.parametrize("junk", [[], {}, [1], "x", 10**30, float("nan"), True])
def test_junk_in_the_place_of_any_section_breaks_nothing(tmp_path: Path, junk: object) -> None:
    for name in ("model", "optimizer", "ddp", "peft", "mixed_precision", "recipe", "checkpoint"):
        path = tmp_path / "over.yaml"
        path.write_text(OVERRIDES)
        found = find_recipe(path, {name: junk})
        assert found is None or found.to_dict()


def test_commands() -> None:
    words = [
        "run_recipe.py",
        "--recipe",
        "llama3_8b_sft_config",
        "--config-file",
        "a.yaml",
        "-tp",
        "2",
        "train.train_iters=5",
    ]
    found = megatron_bridge.invocation(words)
    assert found is not None
    assert found.config == "a.yaml"
    assert dict(found.values) == {
        "recipe": "llama3_8b_sft_config",
        "model.tensor_model_parallel_size": 2,
        "train.train_iters": 5,
    }
    assert megatron_bridge.invocation(["train.py", "--recipe", "x"]) is None
