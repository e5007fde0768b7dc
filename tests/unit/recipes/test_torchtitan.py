"""torchtitan's TOML: one small file, and what each key of it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job.mapping import job_from_dict
from tunecast.job.recipes import find_recipe
from tunecast.job.recipes.cards import on_its_cards
from tunecast.job.recipes.document import toml_document
from tunecast.job.recipes.frameworks import torchtitan
from tunecast.job.recipes.recipe import Recipe

FILE = """\
[job]
dump_folder = "./outputs"

[model]
name = "llama3"
flavor = "8B"

[optimizer]
name = "AdamW"
lr = 3e-4

[training]
local_batch_size = 2
seq_len = 8192
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[compile]
enable = true
components = ["model", "loss"]
"""


def read(path: Path, text: str = FILE, **values: Any) -> Recipe:
    file = path / "mine.toml"
    file.write_text(text)
    found = find_recipe(file, {name.replace("__", "."): value for name, value in values.items()})
    assert found is not None and found.framework == "torchtitan"
    return found


def field(recipe: Recipe, name: str) -> Any:
    section, _, leaf = name.rpartition(".")
    return (recipe.job.get(section, {}) if section else recipe.job).get(leaf)


def test_a_file_becomes_a_job(tmp_path: Path) -> None:
    recipe = read(tmp_path)
    job = job_from_dict(on_its_cards(recipe.job, recipe.global_batch))
    assert (job.stack, job.model, job.task, job.method) == ("torchtitan", "llama-3.1-8b", "pretrain", "full")
    assert (job.seq_len, job.micro_batch, job.grad_accum, job.run.max_steps) == (8192, 2, 1, 1000)
    assert (job.weights_dtype, job.autocast, job.optimizer) == ("float32", "bfloat16", "adamw_torch_fused")
    assert (job.gradient_checkpointing, job.recompute, job.compile) == (True, "selective", True)
    assert (job.parallel.data, job.parallel.reshard_after_forward) == ("fsdp", True)
    assert (job.run.save_strategy, job.run.eval_strategy, job.max_grad_norm) == ("no", "no", 1.0)
    assert (recipe.not_understood, field(recipe, "hardware.gpus")) == ((), None)
    assert recipe.places["seq_len"].line == 14
    assert recipe.assumed["allocator"].whose == "torchtitan 0.2.2, run_train.sh"


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        ("activation_checkpoint.mode", "none", "gradient_checkpointing", False),
        ("activation_checkpoint.mode", "full", "recompute", "all"),
        ("activation_checkpoint.selective_ac_option", "1", "recompute", "all"),
        ("compile.enable", False, "compile", False),
        ("training.dtype", "bfloat16", "weights_dtype", "bfloat16"),
        ("training.mixed_precision_param", "float32", "autocast", None),
        ("training.enable_cpu_offload", True, "parallel.offload", "parameters"),
        ("training.global_batch_size", 64, "grad_accum", 32),
        ("optimizer.implementation", "foreach", "optimizer", "adamw_torch"),
        ("optimizer.early_step_in_backward", True, "optimizer_in_backward", True),
        ("parallelism.tensor_parallel_degree", 8, "parallel.tensor", 8),
        ("parallelism.expert_parallel_degree", 4, "parallel.expert", 4),
        ("parallelism.fsdp_reshard_after_forward", "never", "parallel.reshard_after_forward", False),
        ("parallelism.data_parallel_replicate_degree", 2, "parallel.data", "hsdp"),
        ("parallelism.data_parallel_shard_degree", 4, "hardware.gpus", 4),
        ("model.converters", ["float8"], "matmul_dtype", "float8"),
        ("checkpoint.enable", True, "run.save_steps", 500),
    ],
)
def test_a_key_sets_a_field(tmp_path: Path, key: str, value: object, name: str, expected: object) -> None:
    recipe = read(tmp_path, **{key.replace(".", "__"): value})
    assert field(recipe, name) == expected
    assert recipe.not_understood == ()


def test_a_pipeline_has_micro_batches_of_its_own(tmp_path: Path) -> None:
    recipe = read(
        tmp_path,
        parallelism__pipeline_parallel_degree=4,
        parallelism__pipeline_parallel_schedule="Interleaved1F1B",
        training__local_batch_size=16,
    )
    assert (field(recipe, "micro_batch"), field(recipe, "grad_accum")) == (1, 16)
    assert field(recipe, "parallel.virtual_stages") == 2
    assert field(recipe, "parallel.reshard_after_forward") is False
    assert recipe.not_understood == ()


def test_validation_is_told_where_it_is_on(tmp_path: Path) -> None:
    assert read(tmp_path, validation={"enable": False, "freq": 5}).not_understood == ()
    recipe = read(tmp_path, validation={"enable": True, "freq": 5, "steps": 10, "local_batch_size": 3})
    assert (field(recipe, "run.eval_steps"), field(recipe, "run.eval_max_batches")) == (5, 10)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_checkpoint.selective_ac_option", "2"),
        ("compile.components", ["loss"]),
        ("optimizer.implementation", "for-loop"),
        ("experimental.unheard_of", 1),
    ],
)
def test_what_no_field_tells_is_told(tmp_path: Path, key: str, value: object) -> None:
    recipe = read(tmp_path, **{key.replace(".", "__"): value})
    assert [each.key for each in recipe.not_understood] == [key]


def test_float8_counts_where_converters_name_it(tmp_path: Path) -> None:
    section = '[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\nfilter_fqns = ["output"]\n'
    assert read(tmp_path, FILE + section).not_understood == ()
    recipe = read(tmp_path, FILE + section, model__converters=["quantize.linear.float8"])
    assert field(recipe, "matmul_dtype") == "float8"
    assert [each.key for each in recipe.not_understood] == ["quantize.linear.float8.enable_fsdp_float8_all_gather"]


@pytest.mark.parametrize(
    ("name", "flavor", "told"),
    [("flux", "flux-dev", "diffusion"), ("vlm", "8B", "vision")],
)
def test_other_tasks_are_refused_by_name(tmp_path: Path, name: str, flavor: str, told: str) -> None:
    assert str(read(tmp_path, model__name=name, model__flavor=flavor).refused).startswith(told)


def test_every_flavor_of_the_table_is_a_model_that_is_known() -> None:
    from tunecast.job.registry import bundled_names

    assert set(torchtitan.FLAVORS.values()) <= set(bundled_names())


def test_a_command_names_the_file_and_what_it_sets() -> None:
    words = "python -m torchtitan.train --job.config_file x.toml --training.seq-len 4096 --compile.enable --a.no-b"
    found = torchtitan.invocation(words.split())
    assert found is not None and found.config == "x.toml"
    assert found.values == {"training.seq_len": 4096, "compile.enable": True, "a.b": False}
    assert torchtitan.invocation(["python", "train.py"]) is None


def test_toml_that_is_none_is_told_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    for text in ("a = ", "[a]\n[a]\n", "a = 1\na = 2\n", "a = " + "[" * 5000):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"x\.toml"):
            find_recipe(file)
    file.write_text("[tool.ruff]\nline-length = 120\n")
    assert find_recipe(file) is None


def test_lines_of_toml() -> None:
    document = toml_document('# a\nx = 1\n[a.b]\nc = """\n"""\n\n[ d ]\n"e" = 2\n', "x.toml")
    assert (document.line("x"), document.line("a.b"), document.line("a.b.c"), document.line("d.e")) == (2, 3, 4, 7)


JUNK: tuple[object, ...] = (None, [], {}, [[]], {"a": {}}, "", "x" * 5000, -1, 10**400, 1e308, True)
KEYS = (
    "training parallelism activation_checkpoint compile checkpoint validation optimizer model.converters "
    "training.local_batch_size training.steps parallelism.pipeline_parallel_degree compile.components "
    "parallelism.data_parallel_shard_degree parallelism.data_parallel_replicate_degree activation_checkpoint.mode"
)


@pytest.mark.parametrize("key", KEYS.split())
def test_junk_is_read_or_told(tmp_path: Path, key: str) -> None:
    for value in JUNK:
        read(tmp_path, **{key.replace(".", "__"): value})


@pytest.mark.parametrize(
    ("family", "flavor", "model"),
    [
        ("llama3", "debugmodel", "torchtitan-llama3-debug"),
        ("llama3_ft", "debugmodel", "torchtitan-llama3-debug"),
        ("qwen3", "debugmodel_moe", "torchtitan-qwen3-moe-debug"),
        ("llama4", "17bx16e", "llama-4-scout"),
    ],
)
def test_flavours_are_known_by_their_sizes(tmp_path: Path, family: str, flavor: str, model: str) -> None:
    recipe = read(tmp_path, model__name=family, model__flavor=flavor)
    assert (field(recipe, "model"), recipe.refused) == (model, None)


def test_experts_split_like_layers_are_an_estimate_of_spread_ones(tmp_path: Path) -> None:
    recipe = read(
        tmp_path, model__name="llama4", model__flavor="17bx16e", training__local_batch_size=8,
        parallelism__tensor_parallel_degree=4, parallelism__expert_tensor_parallel_degree=4,
    )  # fmt: skip
    assert (field(recipe, "micro_batch"), field(recipe, "parallel.expert")) == (2, 4)
    assert field(recipe, "parallel.tensor") is None
    assert [each.key for each in recipe.not_understood] == ["parallelism.tensor_parallel_degree"]


def test_gpt_oss_is_an_estimate_of_transformers(tmp_path: Path) -> None:
    recipe = read(tmp_path, model__name="gpt_oss", model__flavor="20b", compile__enable=False)
    assert (field(recipe, "stack"), field(recipe, "attention")) == ("transformers", "eager")
    assert [each.key for each in recipe.not_understood] == ["model.name"]


def test_fault_tolerance_is_told_once(tmp_path: Path) -> None:
    recipe = read(tmp_path, fault_tolerance__enable=True, fault_tolerance__sync_steps=10)
    assert [each.key for each in recipe.not_understood] == ["fault_tolerance.enable"]


def test_what_no_key_says_is_told_as_assumed(tmp_path: Path) -> None:
    recipe = read(tmp_path)
    assert {"optimizer", "parallel.reshard_after_forward"} & set(recipe.places) == {"optimizer"}
    assert recipe.assumed["parallel.reshard_after_forward"].value is True
