"""torchtitan's configurations as Python functions: a small registry, and what of it reaches a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.job.recipes import find_recipe
from tunecast.job.recipes.recipe import Recipe

FILE = """\
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.quantization import Float8LinearConverter, NVFP4LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.trainer import Trainer

from . import model_registry

LENGTH = 4096


def small() -> Trainer.Config:
    return Trainer.Config(
        loss=CrossEntropyLoss.Config(),
        model_spec=model_registry("8B"),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * LENGTH,
            max_context_length=LENGTH,
            steps=7,
            disable_cuda_graphs=True,
        ),
        activation_checkpoint=SelectiveAC.Config(),
    )


def large() -> Trainer.Config:
    config = small()
    config.model_spec = model_registry("70B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    config.parallelism = ParallelismConfig(tensor_parallel_degree=8)
    config.activation_checkpoint = FullAC.Config()
    config.compile = CompileConfig(enable=True, components=["model"])
    config.training.num_tokens_per_train_step = 64 * LENGTH
    return config


def other() -> Trainer.Config:
    config = small()
    config.loss = ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config())
    config.model_spec = model_registry("8B", attn_backend="varlen", converters=[NVFP4LinearConverter.Config()])
    config.activation_checkpoint = None
    config.training.disable_cuda_graphs = False
    return config


def helper(flavor: str) -> Trainer.Config:
    return small()
"""


def read(path: Path, **values: Any) -> Recipe:
    folder = path / "torchtitan" / "models" / "llama3"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config_registry.py"
    file.write_text(FILE)
    found = find_recipe(file, {name.replace("__", "."): value for name, value in values.items()})
    assert found is not None and found.framework == "torchtitan"
    return found


def field(recipe: Recipe, name: str) -> Any:
    section, _, leaf = name.rpartition(".")
    return (recipe.job.get(section, {}) if section else recipe.job).get(leaf)


@pytest.mark.parametrize("values", [{}, {"config": "missing"}])
def test_a_file_of_several_names_them(tmp_path: Path, values: dict[str, str]) -> None:
    refused = read(tmp_path, **values).refused or ""
    assert refused.endswith("config=NAME takes one of small, large, other")


def test_the_chosen_one_becomes_a_job(tmp_path: Path) -> None:
    recipe = read(tmp_path, config="small")
    assert (field(recipe, "model"), field(recipe, "task"), field(recipe, "stack")) == (
        "llama-3.1-8b", "pretrain", "torchtitan",
    )  # fmt: skip
    assert (field(recipe, "seq_len"), field(recipe, "micro_batch"), field(recipe, "run.max_steps")) == (4096, 2, 7)
    assert (field(recipe, "recompute"), field(recipe, "compile")) == ("selective", False)
    assert (recipe.refused, recipe.not_understood) == (None, ())
    assert recipe.places["seq_len"].line == 20


def test_one_that_changes_another_is_followed(tmp_path: Path) -> None:
    recipe = read(tmp_path, config="large")
    assert (field(recipe, "model"), field(recipe, "parallel.tensor")) == ("llama-3.1-70b", 8)
    assert (field(recipe, "recompute"), field(recipe, "compile"), field(recipe, "matmul_dtype")) == (
        "all", True, "float8",
    )  # fmt: skip
    assert recipe.global_batch == 64


def test_what_the_release_before_had_not_is_told(tmp_path: Path) -> None:
    recipe = read(tmp_path, config="other")
    assert {each.key for each in recipe.not_understood} == {
        "loss.chunked", "model.converted_by", "model.flavor", "training.disable_cuda_graphs",
    }  # fmt: skip
    assert field(recipe, "gradient_checkpointing") is False


def test_values_of_the_command_line_win(tmp_path: Path) -> None:
    assert field(read(tmp_path, config="small", training__seq_len=1024), "seq_len") == 1024


def test_a_command_names_module_and_configuration(tmp_path: Path) -> None:
    read(tmp_path)
    script = tmp_path / "train.sh"
    script.write_text("torchrun --nproc_per_node=4 -m torchtitan.train --module llama3 --config small\n")
    recipe = find_recipe(script)
    assert recipe is not None
    assert (field(recipe, "model"), field(recipe, "hardware.gpus")) == ("llama-3.1-8b", 4)
