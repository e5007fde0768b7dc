"""Keys of TrainingArguments, SFTConfig and ModelConfig, each rule once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.job.mapping import job_from_dict
from tunecast.job.recipes import huggingface, huggingface_keys
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft
from tunecast.job.recipes.recipe import Recipe
from tunecast.job.recipes.request import ReadRequest


def read(keys: dict[str, Any], folder: Path = Path("/nowhere"), trl: bool = False) -> Recipe:
    document = Document("args.yaml", keys, {name: number for number, name in enumerate(keys, 1)})
    draft = Draft("trl", "1.16.0")
    request = ReadRequest(document, folder)
    of = draft.keys(document, (*huggingface_keys.WITHOUT_EFFECT, *huggingface_keys.SFT_WITHOUT_EFFECT))
    defaults = huggingface_keys.TRL_ARGUMENTS if trl else huggingface_keys.TRAINING_ARGUMENTS
    huggingface.take_model_config(draft, of)
    huggingface.take_training_arguments(draft, of, request, defaults)
    huggingface.take_sft_config(draft, of)
    return draft.finish()


def said(keys: dict[str, Any], **others: Any) -> dict[str, Any]:
    """What the file says, by dotted field."""
    recipe = read(keys, **others)
    return {field: value_of(recipe, field) for field in recipe.places}


def value_of(recipe: Recipe, field: str) -> Any:
    section, _, leaf = field.rpartition(".")
    return recipe.job[section][leaf] if section else recipe.job[leaf]


def not_understood(keys: dict[str, Any]) -> list[str]:
    return [each.key for each in read(keys).not_understood]


def test_nothing_said_is_the_trainers_default() -> None:
    recipe = read({"model_name_or_path": "llama-3.1-8b"})
    assert recipe.job["micro_batch"] == 8 and recipe.job["gradient_checkpointing"] is False
    assert recipe.job["autocast"] is None and recipe.job["weights_dtype"] == "float32"
    assert recipe.assumed["micro_batch"].whose == "transformers 5.22.2"
    assert recipe.assumed["seq_len"] == (1024, "trl 1.16.0")
    assert "run.eval_steps" not in recipe.assumed and "lora.rank" not in recipe.assumed


def test_trl_computes_in_bfloat16_and_checkpoints() -> None:
    recipe = read({"model_name_or_path": "llama-3.1-8b"}, trl=True)
    assert recipe.job["autocast"] == "bfloat16" and recipe.job["gradient_checkpointing"] is True


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}, {"micro_batch": 2, "grad_accum": 4}),
        ({"bf16": False}, {"autocast": None}),
        ({"bf16": True}, {"autocast": "bfloat16"}),
        ({"bf16": False, "fp16": True}, {"autocast": "float16"}),
        ({"bf16": "auto"}, {}),
        ({"optim": "adamw_hf"}, {"optimizer": "adamw_torch"}),
        ({"adafactor": True}, {"optimizer": "adafactor"}),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, {"checkpoint_reentrant": True}),
        ({"gradient_checkpointing_kwargs": '{"use_reentrant": false}'}, {"checkpoint_reentrant": False}),
        ({"torch_compile_backend": "inductor"}, {"compile": True}),
        ({"use_liger_kernel": True}, {"kernels": ["liger"]}),
        ({"max_steps": -1, "num_train_epochs": 2}, {"data.epochs": 2}),
        ({"max_steps": 60, "num_train_epochs": -1}, {"run.max_steps": 60}),
        ({"data_seed": 3, "seed": 4}, {"data.seed": 3}),
        ({"train_sampling_strategy": "group_by_length"}, {"data.group_by_length": True}),
        ({"group_by_length": True}, {"data.group_by_length": True}),
        ({"eval_strategy": False}, {"run.eval_strategy": "no"}),
        ({"evaluation_strategy": "steps", "eval_steps": 50}, {"run.eval_strategy": "steps", "run.eval_steps": 50}),
        ({"eval_strategy": "steps", "logging_steps": 25}, {"run.eval_strategy": "steps", "run.eval_steps": 25}),
        ({"eval_strategy": "epoch", "eval_steps": 50}, {"run.eval_strategy": "epoch"}),
        ({"save_strategy": "epoch", "save_steps": 50}, {"run.save_strategy": "epoch"}),
        ({"save_total_limit": 0}, {}),
        ({"save_steps": 0.1, "max_steps": 105}, {"run.max_steps": 105, "run.save_steps": 11}),
        ({"save_steps": 0.25, "num_train_epochs": 2}, {"data.epochs": 2, "run.saves_per_epoch": 2.0}),
        (
            {"use_liger_kernel": True, "liger_kernel_config": {"rope": False, "cross_entropy": False}},
            {"kernels": ["liger_rms_norm", "liger_glu", "liger_fused_linear_cross_entropy"]},
        ),
        ({"max_seq_length": 4096}, {"seq_len": 4096}),
        ({"packing": True, "packing_strategy": "ffd"}, {"data.packing": True, "data.packing_strategy": "bfd"}),
        ({"pad_to_multiple_of": "auto"}, {}),
        ({"torch_dtype": None}, {"weights_dtype": "auto"}),
        ({"torch_dtype": "torch.bfloat16"}, {"weights_dtype": "bfloat16"}),
        ({"attn_implementation": "kernels-community/vllm-flash-attn3"}, {"attention": "flash_attention_3"}),
        ({"attn_implementation": "kernels-community/flash-attn2"}, {"attention": "flash_attention_2"}),
        ({"use_peft": False, "lora_r": 8}, {}),
        ({"lora_target_modules": ["all-linear"], "use_peft": True}, {"method": "lora", "lora.targets": "all-linear"}),
        (
            {"load_in_4bit": True, "use_peft": True, "use_bnb_nested_quant": True},
            {"method": "qlora", "quantization.format": "nf4", "quantization.double_quant": True},
        ),
        ({"load_in_8bit": True, "use_peft": True}, {"method": "qlora", "quantization.format": "int8"}),
        ({"fsdp": "", "fsdp_config": {"min_num_params": 0}}, {}),
        (
            {"fsdp": "full_shard auto_wrap offload"},
            {"parallel.data": "fsdp", "parallel.reshard_after_forward": True, "parallel.offload": "parameters"},
        ),
        (
            {"fsdp": ["shard_grad_op"], "fsdp_config": '{"version": 1}'},
            {"parallel.data": "fsdp", "parallel.reshard_after_forward": False, "parallel.fsdp_version": 1},
        ),
    ],
)
def test_a_key_says_its_fields(keys: dict[str, Any], fields: dict[str, Any]) -> None:
    assert said(keys) == fields
    job_from_dict({"model": "llama-3.1-8b", **read(keys, trl=True).job})


@pytest.mark.parametrize(
    "keys",
    [
        {"torch_empty_cache_steps": 4},
        {"auto_find_batch_size": True},
        {"label_smoothing_factor": 0.1},
        {"max_length": None},
        {"padding_free": True},
        {"loss_type": "dft"},
        {"torch_compile": True, "torch_compile_mode": "max-autotune"},
        {"save_strategy": "best"},
    ],
)
def test_what_no_field_tells_is_named(keys: dict[str, Any]) -> None:
    assert not_understood(keys) == [list(keys)[-1]]


def test_switched_off_says_nothing() -> None:
    keys = {"auto_find_batch_size": False, "label_smoothing_factor": 0.0, "torch_empty_cache_steps": None, "tf32": True}
    assert not_understood(keys) == []


def test_report_to_is_ignored_with_its_items() -> None:
    recipe = read({"report_to": ["wandb"], "lr_scheduler_kwargs": {"min_lr_rate": 0.1}})
    assert not recipe.not_understood and "report_to.0" in recipe.ignored


def test_a_deepspeed_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    assert said({"deepspeed": "ds.json"}, folder=tmp_path)["parallel.data"] == "zero3"


JUNK = (["a", {"b": 1}], {"x": [1]}, 10**30, float("nan"), "nonsense", -1, True, "")


@pytest.mark.parametrize("value", JUNK, ids=repr)
def test_any_type_may_stand_anywhere(value: object) -> None:
    names = [
        *("per_device_train_batch_size", "optim", "bf16", "fp16", "gradient_checkpointing_kwargs"),
        *("torch_compile_mode", "group_by_length"),
        *("max_steps", "num_train_epochs", "eval_strategy", "eval_steps", "save_steps", "save_strategy", "fsdp"),
        *("fsdp_config", "deepspeed", "accelerator_config", "max_length", "packing_strategy", "attn_implementation"),
        *("torch_dtype", "lora_target_modules", "lora_r", "load_in_4bit", "bnb_4bit_quant_type", "loss_type"),
    ]
    for name in names:
        read({name: value, "use_peft": True, "eval_strategy": "steps", "fsdp": "full_shard"} | {name: value})
