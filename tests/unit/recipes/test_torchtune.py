"""torchtune's YAML: one small file, and what each key of it changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tunecast.job.mapping import job_from_dict
from tunecast.job.recipes import find_recipe
from tunecast.job.recipes.document import yaml_document
from tunecast.job.recipes.frameworks import torchtune
from tunecast.job.recipes.recipe import Recipe

COMMAND = "#   tune run lora_finetune_single_device --config mine\n"
SPREAD = "#   tune run --nnodes 1 --nproc_per_node 4 full_finetune_distributed --config mine\n"
FILE = """\
output_dir: /tmp/out
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  apply_lora_to_output: False
  lora_rank: 4
  lora_alpha: 8
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: 2048
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: False
batch_size: 3
batch_size_val: ${batch_size}
epochs: 2
gradient_accumulation_steps: 4
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  lr: 1e-4
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
dtype: bf16
enable_activation_checkpointing: True
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: ${output_dir}/logs
"""
FULL = re.sub("  (lora_|apply_).*\\n", "", FILE.replace("lora_llama3_1_8b", "llama3_1_8b"))


def read(path: Path, text: str, **values: Any) -> Recipe:
    file = path / "mine.yaml"
    file.write_text(text)
    found = find_recipe(file, {name.replace("__", "."): value for name, value in values.items()})
    assert found is not None and found.framework == "torchtune"
    return found


def field(recipe: Recipe, name: str) -> Any:
    section, _, leaf = name.rpartition(".")
    return (recipe.job.get(section, {}) if section else recipe.job).get(leaf)


def test_a_file_becomes_a_job(tmp_path: Path) -> None:
    recipe = read(tmp_path, COMMAND + FILE)
    job = job_from_dict(recipe.job)
    assert (job.stack, job.model, job.method, job.task) == ("torchtune", "llama-3.1-8b", "lora", "sft")
    assert job.lora.targets == ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert (job.lora.rank, job.lora.alpha, job.lora.adapter_dtype) == (4, 8, "bfloat16")
    assert (job.seq_len, job.micro_batch, job.grad_accum, job.run.eval_batch) == (2048, 3, 4, 3)
    assert (job.weights_dtype, job.autocast, job.optimizer, job.loss) == (
        "bfloat16", None, "adamw_torch_fused", "chunked",
    )  # fmt: skip
    assert (job.gradient_checkpointing, job.data.epochs, job.max_grad_norm) == (True, 2, 0)
    assert recipe.not_understood == () and recipe.refused is None
    assert recipe.places["lora.rank"].line == 8
    assert recipe.assumed["lora.dropout"].whose == "torchtune 0.6.1"
    assert "optimizer.lr" in recipe.ignored and "metric_logger.log_dir" in recipe.ignored


@pytest.mark.parametrize(
    ("builder", "model", "method"),
    [
        ("llama2.llama2_7b", "llama-2-7b", "full"),
        ("llama3_2.qlora_llama3_2_3b", "llama-3.2-3b", "qlora"),
        ("qwen2_5.lora_qwen2_5_1_5b_instruct", "qwen2.5-1.5b", "lora"),
        ("qwen2_5.qwen2_5_7b_base", "qwen2.5-7b", "full"),
        ("gemma.lora_gemma_2b", "gemma-2b", "lora"),
        ("phi3.phi3_mini", "phi-3-mini", "full"),
        ("mistral.mistral_7b", "mistral-7b-v0.1", "full"),
    ],
)
def test_the_builder_says_model_and_method(tmp_path: Path, builder: str, model: str, method: str) -> None:
    recipe = read(tmp_path, COMMAND + FILE, model___component_=f"torchtune.models.{builder}")
    assert (field(recipe, "model"), field(recipe, "method")) == (model, method)


def test_every_builder_of_the_table_is_a_model_that_is_known() -> None:
    from tunecast.job.registry import bundled_names

    unknown = {name for name in torchtune.MODELS.values() if "/" not in name} - set(bundled_names())
    assert unknown == set()


def test_an_unknown_builder_falls_back_on_the_checkpoint(tmp_path: Path) -> None:
    recipe = read(
        tmp_path, COMMAND + FULL, model___component_="mine.build", checkpointer__checkpoint_dir="/tmp/Qwen2.5-3B"
    )
    assert field(recipe, "model") == "/tmp/Qwen2.5-3B"
    assert [each.key for each in recipe.not_understood] == ["model._component_"]


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        ("dtype", "fp32", "weights_dtype", "float32"),
        ("clip_grad_norm", 1.0, "max_grad_norm", 1.0),
        ("clip_grad_norm", "inf", "max_grad_norm", 1e9),
        ("compile", True, "compile", True),
        ("compile", {"model": True, "loss": False}, "compile", True),
        ("enable_activation_offloading", True, "offload_activations", True),
        ("dataset.packed", True, "data.packing", True),
        ("optimizer_in_bwd", True, "optimizer_in_backward", True),
        ("optimizer._component_", "bitsandbytes.optim.PagedAdamW8bit", "optimizer", "paged_adamw_8bit"),
        ("optimizer.fused", False, "optimizer", "adamw_torch"),
        ("loss._component_", "torch.nn.CrossEntropyLoss", "loss", "full"),
        ("model.lora_dropout", 0.1, "lora.dropout", 0.1),
        ("model.quantize_base", True, "method", "qlora"),
        ("max_steps_per_epoch", 50, "run.max_steps", 100),
        ("run_val_every_n_steps", 10, "run.eval_steps", 10),
        ("save_every_n_steps", 20, "run.save_steps", 20),
        ("seed", 7, "data.seed", 7),
    ],
)
def test_a_key_sets_a_field(tmp_path: Path, key: str, value: object, name: str, expected: object) -> None:
    recipe = read(tmp_path, COMMAND + FILE, **{key.replace(".", "__"): value})
    assert field(recipe, name) == expected
    assert recipe.not_understood == ()


def test_rows_that_are_not_cut_are_told_as_assumed(tmp_path: Path) -> None:
    recipe = read(tmp_path, COMMAND + FILE.replace("max_seq_len: 2048", "max_seq_len: null"))
    assert recipe.assumed["seq_len"].value == 1024
    assert "no row is cut" in recipe.assumed["seq_len"].whose


def test_the_command_in_the_comments_says_the_cards(tmp_path: Path) -> None:
    recipe = read(tmp_path, SPREAD + FULL, custom_sharded_layers=["tok_embeddings", "output"])
    assert (field(recipe, "parallel.data"), field(recipe, "hardware.gpus")) == ("fsdp", 4)
    assert recipe.places["hardware.gpus"].line == 1
    assert recipe.not_understood == ()


def test_a_file_without_a_command_is_asked_for_its_cards(tmp_path: Path) -> None:
    recipe = read(tmp_path, FILE)
    assert field(recipe, "parallel.data") == "fsdp" and field(recipe, "hardware.gpus") is None


@pytest.mark.parametrize(
    ("text", "named", "apart"),
    [(FULL, None, False), (FULL, ["tok_embeddings", "output"], True), (FILE, ["decoder.tok_embeddings"], True)],
)
def test_embedding_and_head_may_be_gathered_apart(tmp_path: Path, text: str, named: object, apart: bool) -> None:
    recipe = read(tmp_path, SPREAD + text, custom_sharded_layers=named)
    assert field(recipe, "parallel.shard_ends") is apart
    assert recipe.not_understood == ()


def test_other_units_are_told(tmp_path: Path) -> None:
    recipe = read(tmp_path, SPREAD + FULL, custom_sharded_layers=["norm"])
    assert [each.key for each in recipe.not_understood] == ["custom_sharded_layers"]


def test_weights_may_wait_on_the_host(tmp_path: Path) -> None:
    assert field(read(tmp_path, SPREAD + FULL, fsdp_cpu_offload=True), "parallel.offload") == "parameters"


def test_dora_over_quantised_weights_is_an_estimate_of_transformers(tmp_path: Path) -> None:
    recipe = read(tmp_path, COMMAND + FILE, model__use_dora=True, model__quantize_base=True)
    assert field(recipe, "stack") == "transformers"
    assert [each.key for each in recipe.not_understood] == ["model.use_dora"]
    assert field(read(tmp_path, COMMAND + FILE, model__use_dora=True), "stack") == "torchtune"


@pytest.mark.parametrize(
    ("change", "release"),
    [
        ({}, "0.7.0"),
        ({"loss___component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"}, None),
        (
            {
                "loss___component_": "torchtune.modules.loss.CEWithChunkedOutputLoss",
                "model___component_": "torchtune.models.qwen3.lora_qwen3_8b_instruct",
            },
            "0.7.0",
        ),
    ],
)
def test_what_no_release_has_says_the_release(tmp_path: Path, change: dict[str, str], release: str | None) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(COMMAND + FILE)
    recipe = find_recipe(file, {name.replace("___component_", "._component_"): value for name, value in change.items()})
    assert recipe is not None and field(recipe, "stack_version") == release
    assert recipe.not_understood == ()


def test_llama_4_on_text_is_an_estimate_of_transformers(tmp_path: Path) -> None:
    llama4 = SPREAD + FULL.replace("llama3_1.llama3_1_8b", "llama4.llama4_scout_17b_16e")
    recipe = read(tmp_path, llama4, tensor_parallel_dim=2)
    assert recipe.refused is None and field(recipe, "model") == "llama-4-scout"
    assert (field(recipe, "stack"), field(recipe, "stack_version")) == ("transformers", None)
    assert {each.key for each in recipe.not_understood} == {"model._component_", "tensor_parallel_dim"}
    images = llama4.replace("datasets.alpaca_dataset", "datasets.multimodal.the_cauldron_dataset")
    assert (read(tmp_path, images).refused or "").startswith("vision")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (COMMAND + FILE + "quantizer: {_component_: torchtune.training.quantization.Q, groupsize: 256}\n", "QAT"),
        (COMMAND + FILE.replace("model:\n", "policy_model:\n", 1), "ppo"),
        (COMMAND + FILE.replace("llama3_1.lora_llama3_1_8b", "llama3_2_vision.llama3_2_vision_11b"), "vision"),
        (COMMAND.replace("lora_finetune_single_device", "eleuther_eval") + FILE, "evaluation"),
        ("model: {_component_: torchtune.models.llama2.llama2_7b}\nprompt: {user: hello}\n", "generation"),
    ],
)  # fmt: skip
def test_other_tasks_are_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    refused = read(tmp_path, text).refused
    assert refused is not None and refused.startswith(f"{named}:")


def test_distillation_is_by_another_stacks_code(tmp_path: Path) -> None:
    recipe = read(tmp_path, COMMAND + FILE + "teacher_model: {_component_: torchtune.models.llama3_1.llama3_1_8b}\n")
    assert recipe.refused is None and (field(recipe, "task"), field(recipe, "stack")) == ("distill", "trl")
    assert "teacher_model._component_" in {each.key for each in recipe.not_understood}


def test_preference_tuning_is_a_task(tmp_path: Path) -> None:
    recipe = read(tmp_path, COMMAND + FILE, loss___component_="torchtune.rlhf.loss.DPOLoss")
    assert field(recipe, "task") == "dpo"


def test_a_command_names_the_file_and_what_it_sets() -> None:
    words = "tune run --nproc_per_node 2 lora_finetune_distributed --config x/y batch_size=8 model.lora_rank=64 ~seed"
    found = torchtune.invocation(words.split())
    assert found is not None and found.config == "x/y.yaml"
    assert found.values == {
        "recipe": "lora_finetune_distributed", "batch_size": 8, "model.lora_rank": 64, "seed": None,
    }  # fmt: skip
    assert torchtune.invocation(["tune", "download", "x"]) is None


def test_a_script_says_recipe_and_cards(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(FILE)
    script = tmp_path / "train.sh"
    script.write_text("tune run --nproc_per_node 2 lora_finetune_distributed --config mine.yaml batch_size=8\n")
    recipe = find_recipe(script)
    assert recipe is not None
    assert (field(recipe, "hardware.gpus"), field(recipe, "micro_batch")) == (2, 8)
    assert field(recipe, "parallel.data") == "fsdp"


def test_others_files_are_not_its_own() -> None:
    for text in ("model: {_component_: mine.build}\n", "base_model: x\n", "model: [1]\n"):
        assert not torchtune.recognises(yaml_document(text, "x.yaml"))


JUNK: tuple[object, ...] = (None, [], {}, [[]], {"a": {}}, "", "x" * 5000, -1, 10**400, 1e308, True, "${a}", ["${b}"])


KEYS = (
    "model tokenizer dataset optimizer loss epochs dtype compile model.lora_attn_modules custom_sharded_layers recipe "
    "max_steps_per_epoch model._component_ batch_size clip_grad_norm tensor_parallel_dim"
)


@pytest.mark.parametrize("key", KEYS.split())
def test_junk_is_read_or_told(tmp_path: Path, key: str) -> None:
    for value in JUNK:
        file = tmp_path / "mine.yaml"
        file.write_text(SPREAD + FILE)
        assert find_recipe(file, {key: value}) is not None
