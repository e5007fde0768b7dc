"""TRL's YAML and commands, and JSON files of TrainingArguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.job.readers import read_job
from tunecast.job.recipes import find_recipe
from tunecast.job.recipes.document import Document, yaml_document
from tunecast.job.recipes.draft import Draft
from tunecast.job.recipes.frameworks import trl
from tunecast.job.recipes.recipe import Recipe
from tunecast.job.recipes.request import Launch, ReadRequest

SFT = """\
model_name_or_path: meta-llama/Llama-3.1-8B
torch_dtype: bfloat16
dataset_name: trl-lib/Capybara
use_peft: true
load_in_4bit: true
lora_r: 32
per_device_train_batch_size: 2
learning_rate: 2.0e-4
max_seq_length: 2048
report_to:
- wandb
env:
  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True
"""


def read(text: str, command: str = "", values: dict[str, Any] | None = None, launch: Launch | None = None) -> Recipe:
    document = yaml_document(text, "config.yaml").with_values(values or {})
    assert trl.recognises(document)
    draft = Draft(trl.NAME, trl.RELEASE)
    trl.read(draft, ReadRequest(document, Path("/nowhere/recipes"), launch or Launch(), command))
    return draft.finish()


def test_a_recipe_says_the_job(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(SFT)
    recipe = find_recipe(path)
    assert recipe is not None and recipe.framework == "trl" and not recipe.not_understood
    assert str(recipe.places["lora.rank"]) == f"{path}:6 lora_r"
    assert recipe.assumed["lora.alpha"] == (32, "trl 1.16.0")
    job = read_job(str(path), {"hardware.gpu": "rtx-4090"})
    assert (job.stack, job.method, job.seq_len, job.micro_batch) == ("trl", "qlora", 2048, 2)
    assert job.autocast == "bfloat16" and job.gradient_checkpointing and job.weights_dtype == "bfloat16"
    assert job.allocator == "expandable_segments"


@pytest.mark.parametrize("keys", ["stage: sft", "finetuning_type: lora", "cutoff_len: 2048"])
def test_others_files_are_left_to_them(keys: str) -> None:
    assert not trl.recognises(yaml_document(f"{SFT}{keys}\n", "x.yaml"))


def test_a_model_alone_is_no_training() -> None:
    assert not trl.recognises(yaml_document("model_name_or_path: gpt2\n", "x.yaml"))


@pytest.mark.parametrize(
    ("key", "task"),
    [
        ("beta: 0.1", "dpo"),
        ("loss_type: sigmoid", "dpo"),
        ("reward_funcs: [accuracy]", "grpo"),
        ("desirable_weight: 1.0", "kto"),
        ("teacher_model_name_or_path: gpt2", "distill"),
        ("reward_model_path: x", "ppo"),
        ("cpo_alpha: 1", "cpo"),
        ("cpo_alpha: 0\nloss_type: simpo", "simpo"),
        ("step_separator: x", "prm"),
        ("rloo_k: 4", "rloo"),
    ],
)
def test_keys_name_the_task(key: str, task: str) -> None:
    assert read(f"{SFT}{key}\n").job["task"] == task


@pytest.mark.parametrize("command", ["bco", "xpo", "gold", "sdft", "sdpo", "tpo", "online_dpo", "nash_md"])
def test_tasks_no_job_has_are_refused(command: str) -> None:
    refused = read(SFT, command).refused
    assert refused is not None and refused.startswith(f"{trl.COMMANDS[command]}:")


def test_a_folder_names_the_kind_of_preference_tuning(tmp_path: Path) -> None:
    (tmp_path / "orpo").mkdir()
    path = tmp_path / "orpo" / "config.yaml"
    path.write_text(f"{SFT}beta: 0.1\n")
    recipe = find_recipe(path)
    assert recipe is not None and recipe.job["task"] == "orpo"
    assert read_job(str(path), {"hardware.gpu": "rtx-4090"}).preference.beta == 0.1


def test_the_command_names_the_task() -> None:
    assert read(SFT, "reward").job["task"] == "reward"
    assert read(SFT, "sft").job["task"] == "sft"


@pytest.mark.parametrize(
    ("words", "config", "values", "command"),
    [
        ("trl sft --config x.yaml --lora_r 8", "x.yaml", {"lora_r": 8}, "sft"),
        ("trl dpo --model_name_or_path gpt2 --bf16", None, {"model_name_or_path": "gpt2", "bf16": True}, "dpo"),
        ("python scripts/run_sft.py --config x.yaml --no_bf16", "x.yaml", {"bf16": False}, "sft"),
        ("src/open_r1/grpo.py --config=y.yaml", "y.yaml", {}, "grpo"),
        ("trl/scripts/sft.py --lora_target_modules q_proj v_proj", None,
         {"lora_target_modules": ["q_proj", "v_proj"]}, "sft"),
        ("python -m trl.scripts.sft --max-length 512", None, {"max_length": 512}, "sft"),
    ],
)  # fmt: skip
def test_commands(words: str, config: str | None, values: dict[str, Any], command: str) -> None:
    found = trl.invocation(words.split())
    assert found is not None
    assert (found.config, found.values, found.command) == (config, values, command)


@pytest.mark.parametrize("words", ["trl env", "python train.py", "ls", "", "llamafactory-cli train x.yaml"])
def test_other_commands(words: str) -> None:
    assert trl.invocation(words.split()) is None


def test_trls_own_accelerate_configs() -> None:
    recipe = read(SFT.replace("load_in_4bit: true\n", ""), values={"accelerate_config": "zero2"})
    assert recipe.job["parallel"]["data"] == "zero2" and recipe.job["hardware"]["gpus"] == 8
    assert recipe.job["autocast"] == "bfloat16" and not recipe.not_understood


def test_an_accelerate_file_of_the_launcher() -> None:
    file = yaml_document("distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n", "fsdp.yaml")
    recipe = read("model_name_or_path: gpt2\noutput_dir: x\n", launch=Launch(accelerate=file))
    assert recipe.job["parallel"]["data"] == "fsdp" and recipe.job["hardware"]["gpus"] == 4


def test_a_missing_accelerate_file_is_named() -> None:
    recipe = read(SFT, values={"accelerate_config": "nowhere.yaml"})
    assert [each.key for each in recipe.not_understood] == ["accelerate_config"]


@pytest.mark.parametrize("value", [["a"], {"b": 1}, 10**30, "nonsense", -1, True], ids=repr)
def test_any_type_may_stand_anywhere(value: object) -> None:
    for name in ("model_name_or_path", "loss_type", "env", "accelerate_config", "dataset_mixture", "beta"):
        tree = {"model_name_or_path": "gpt2", "output_dir": "x"} | {name: value}
        draft = Draft(trl.NAME, trl.RELEASE)
        trl.read(draft, ReadRequest(Document("x.yaml", tree, {}), Path("/nowhere")))
        draft.finish()


ARGUMENTS = """\
{"output_dir": "out", "per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 5e-05, "bf16": true,
 "optim": "adamw_torch", "fsdp": [], "fsdp_config": {"min_num_params": 0}, "deepspeed": null, "_n_gpu": 1%s}
"""


def test_training_arguments(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text(ARGUMENTS % "")
    job = read_job(str(path), {"model": "llama-3.2-1b", "hardware.gpu": "rtx-4090"})
    assert (job.stack, job.micro_batch, job.data.epochs, job.optimizer) == ("transformers", 4, 2, "adamw_torch")
    assert not job.gradient_checkpointing and not job.not_modelled


def test_arguments_of_run_clm(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text(ARGUMENTS % ', "model_name_or_path": "gpt2", "block_size": 512, "do_train": true')
    recipe = find_recipe(path)
    assert recipe is not None and recipe.framework == "transformers"
    assert recipe.job["model"] == "gpt2" and recipe.job["seq_len"] == 512 and recipe.job["task"] == "pretrain"


def test_arguments_of_sft(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text(ARGUMENTS % ', "packing": true, "max_length": 2048')
    recipe = find_recipe(path)
    assert recipe is not None and recipe.job["stack"] == "trl" and recipe.job["data"]["packing"] is True
