"""litgpt's YAML: one small file, and what each key of it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.job.mapping import job_from_dict
from tunecast.job.recipes import find_recipe
from tunecast.job.recipes.document import yaml_document
from tunecast.job.recipes.frameworks import litgpt
from tunecast.job.recipes.recipe import Recipe

FILE = """\
checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
out_dir: out/mine
precision: bf16-true
quantize:
devices: 1
num_nodes: 1
lora_r: 32
lora_alpha: 16
lora_query: true
lora_mlp: true
data:
  class_path: litgpt.data.Alpaca2k
  init_args:
    num_workers: 2
    seed: 9
train:
  save_interval: 200
  global_batch_size: 8
  micro_batch_size: 2
  epochs: 2
  max_steps:
  max_seq_length: 512
eval:
  interval: 100
  max_new_tokens: 100
  max_iters: 50
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 0.0002}
"""
FULL = "".join(line for line in FILE.splitlines(True) if not line.startswith(("lora_", "quantize")))
PRETRAIN = """\
model_name: tiny-llama-1.1b
precision: bf16-mixed
data: TinyLlama
train: {global_batch_size: 512, micro_batch_size: 4, max_tokens: 3000000, max_norm: 1.0, max_seq_length: 2048}
devices: auto
"""


def read(path: Path, text: str = FILE, **values: Any) -> Recipe:
    file = path / "mine.yaml"
    file.write_text(text)
    found = find_recipe(file, {name.replace("__", "."): value for name, value in values.items()})
    assert found is not None and found.framework == "litgpt"
    return found


def field(recipe: Recipe, name: str) -> Any:
    section, _, leaf = name.rpartition(".")
    return (recipe.job.get(section, {}) if section else recipe.job).get(leaf)


def test_a_file_becomes_a_job(tmp_path: Path) -> None:
    recipe = read(tmp_path)
    job = job_from_dict(recipe.job)
    assert (job.stack, job.model, job.method, job.task) == ("litgpt", "meta-llama/Llama-3.2-1B", "lora", "sft")
    assert job.lora.targets == ("q_proj", "v_proj", "gate_proj", "up_proj", "down_proj")
    assert (job.lora.rank, job.lora.dropout, job.lora.adapter_dtype) == (32, 0.05, "bfloat16")
    assert (job.seq_len, job.micro_batch, job.grad_accum) == (512, 2, 4)
    assert (job.weights_dtype, job.autocast, job.optimizer) == ("bfloat16", None, "adamw_torch")
    assert (job.gradient_checkpointing, job.max_grad_norm, job.hardware.gpus) == (False, 0, 1)
    assert (job.data.epochs, job.data.workers, job.data.seed) == (2, 2, 9)
    assert (job.run.save_steps, job.run.eval_steps, job.run.eval_max_batches, job.run.eval_batch) == (200, 100, 50, 2)
    assert recipe.not_understood == ()
    assert recipe.places["lora.rank"].line == 7


@pytest.mark.parametrize(
    ("given", "form", "twice"),
    [
        ("bnb.nf4", "nf4", False),
        ("bnb.nf4-dq", "nf4", True),
        ("bnb.fp4", "fp4", False),
        ("bnb.int8-training", "int8", False),
    ],
)  # fmt: skip
def test_quantised_weights(tmp_path: Path, given: str, form: str, twice: bool) -> None:
    recipe = read(tmp_path, quantize=given)
    assert (field(recipe, "method"), field(recipe, "quantization.format")) == ("qlora", form)
    assert field(recipe, "quantization.double_quant") is twice
    assert field(recipe, "optimizer") == "paged_adamw_32bit"
    assert field(recipe, "quantization.prepare_kbit") is False


@pytest.mark.parametrize(
    ("given", "weights", "autocast"),
    [("bf16-mixed", "float32", "bfloat16"), ("32-true", "float32", None), ("16-mixed", "float32", "float16")],
)
def test_precision_says_weights_and_autocast(tmp_path: Path, given: str, weights: str, autocast: str | None) -> None:
    recipe = read(tmp_path, precision=given)
    assert (field(recipe, "weights_dtype"), field(recipe, "autocast")) == (weights, autocast)
    silent = read(tmp_path, precision=None)
    assert silent.assumed["autocast"].value == "bfloat16" and silent.assumed["weights_dtype"].value == "float32"


def test_all_weights_on_several_cards_are_sharded_and_recomputed(tmp_path: Path) -> None:
    recipe = read(tmp_path, FULL, devices=4)
    assert (field(recipe, "method"), field(recipe, "hardware.gpus")) == ("full", 4)
    assert (field(recipe, "parallel.data"), field(recipe, "parallel.fsdp_version")) == ("fsdp", 1)
    assert field(recipe, "gradient_checkpointing") is True
    assert field(recipe, "grad_accum") == 1
    assert recipe.not_understood == ()


def test_pretraining_takes_tokens_and_all_cards(tmp_path: Path) -> None:
    recipe = read(tmp_path, PRETRAIN)
    assert (field(recipe, "task"), field(recipe, "model"), field(recipe, "method")) == (
        "pretrain", "tinyllama-1.1b", "full",
    )  # fmt: skip
    assert (field(recipe, "data.tokens"), field(recipe, "max_grad_norm")) == (3000000, 1.0)
    assert (field(recipe, "optimizer"), field(recipe, "gradient_checkpointing")) == ("adamw_torch_fused", False)
    assert field(recipe, "hardware.gpus") is None and field(recipe, "parallel.data") == "fsdp"


def test_a_command_names_the_file_the_model_and_what_it_sets() -> None:
    words = "litgpt finetune_lora checkpoints/a/b --config x.yaml --train.epochs 1 --lora_r=4 --eval.final_validation"
    found = litgpt.invocation(words.split())
    assert found is not None and found.config == "x.yaml"
    assert found.values == {
        "command": "finetune_lora", "checkpoint_dir": "checkpoints/a/b", "train.epochs": 1, "lora_r": 4,
        "eval.final_validation": True,
    }  # fmt: skip
    older = litgpt.invocation(["litgpt", "finetune", "full", "--checkpoint_dir", "a/b"])
    assert older is not None and older.values == {"command": "finetune_full", "checkpoint_dir": "a/b"}
    assert litgpt.invocation(["litgpt", "chat", "a/b"]) is None


def test_a_command_without_a_file_takes_the_defaults(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("litgpt finetune_lora meta-llama/Llama-3.2-1B --train.micro_batch_size 4\n")
    recipe = find_recipe(script)
    assert recipe is not None
    assert (field(recipe, "method"), field(recipe, "model")) == ("lora", "meta-llama/Llama-3.2-1B")
    assert (field(recipe, "micro_batch"), field(recipe, "grad_accum"), field(recipe, "lora.rank")) == (4, 4, 8)
    assert (field(recipe, "data.epochs"), field(recipe, "lora.targets")) == (5, ["q_proj", "v_proj"])


def test_prompts_of_llama_adapter_are_refused(tmp_path: Path) -> None:
    assert str(read(tmp_path, command="finetune_adapter_v2").refused).startswith("adapter:")


@pytest.mark.parametrize(
    ("key", "value"),
    [("train.tie_embeddings", True), ("train.max_time", 60), ("model_config", {"n_layer": 2}), ("unheard_of", 1)],
)
def test_what_no_field_tells_is_told(tmp_path: Path, key: str, value: object) -> None:
    recipe = read(tmp_path, **{key.replace(".", "__"): value})
    assert [each.key for each in recipe.not_understood] == [key]


def test_others_files_are_not_its_own() -> None:
    for text in ("checkpoint_dir: x\n", "model_name: x\ntrain: 3\n", "train: {micro_batch_size: 1}\n"):
        assert not litgpt.recognises(yaml_document(text, "x.yaml"))


JUNK: tuple[object, ...] = (None, [], {}, [[]], {"a": {}}, "", "x" * 5000, -1, 10**400, 1e308, True)
KEYS = "checkpoint_dir precision quantize devices num_nodes lora_r lora_mlp data train.epochs eval optimizer command"


@pytest.mark.parametrize("key", KEYS.split())
def test_junk_is_read_or_told(tmp_path: Path, key: str) -> None:
    for value in JUNK:
        read(tmp_path, **{key.replace(".", "__"): value})
