"""A job with what follows from its model filled in: the dtype its weights load in, and what gets adapters.

These are the fields whose default is a rule rather than a value. Everything behind the doors that call this
(`fold_job`, the traced recipes, predictions, plans) sees values only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tunecast.job.job import Job, Lora
from tunecast.job.model import ModelConfig, language_part
from tunecast.job.names import DTYPES
from tunecast.records import replace
from tunecast.tape.build.adapters import USUAL_TARGETS
from tunecast.tape.build.expert_adapters import moved_names

DROPOUT = 0.05
"""TRL 1.16.0, ModelConfig.lora_dropout."""

DTYPE_OF_STACK: Mapping[str, str] = {
    "unsloth": "bfloat16",  # FastLanguageModel.from_pretrained(dtype=None), unsloth 2026.10.9
    "axolotl": "bfloat16",  # `torch_dtype` follows `bf16: auto`
    "torchtune": "bfloat16",  # `dtype: bf16` of every recipe's configuration, torchtune 0.6
    "fsdp_qlora": "bfloat16",  # train.py, `precision: "bf16"`
    "litgpt": "float32",  # get_default_supported_precision(training=True): bf16-mixed, whose weights are float32
    "torchtitan": "float32",  # training.dtype; mixed_precision_param casts to bfloat16
    "llm-foundry": "float32",  # amp_bf16 of its configurations
}
"""Where a stack has a dtype of its own; the others load the checkpoint's, as transformers 5 does (dtype="auto")."""

TARGETS_OF_STACK: Mapping[str, str | tuple[str, ...]] = {
    "unsloth": "all-linear",  # FastLanguageModel.get_peft_model, target_modules
    "torchtune": ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),  # its configurations
    "litgpt": ("q_proj", "v_proj"),  # lora_query, lora_value
    "automodel": "all-linear",  # `target_modules: "*_proj"` of its examples; PeftConfig names none
    "megatron": "attention",  # linear_qkv, linear_proj
    "nemo": "attention",
}
"""Where a stack puts adapters by its own default; with the others PEFT chooses."""

MANY_FROM_A_ROUTER = frozenset({"llama4_text"})
"""Architectures whose router is a linear layer that returns several tensors: PEFT adapts it with `all-linear`, and the
forward pass fails."""


def fill_in(job: Job, config: Mapping[str, Any], stored: str | None = None) -> Job:
    """`stored`: the dtype of most of the checkpoint's values, where config.json says nothing and its headers were read.

    Idempotent: a job without such a field is given back as it is.
    """
    if _is_filled_in(job):
        return job
    changes: dict[str, Any] = {}
    if job.weights_dtype == "auto":
        named = (_stack_dtype(job), dtype_of(config), stored if stored in DTYPES else None)
        changes["weights_dtype"] = next(filter(None, named), "float32")
    if job.method != "full":
        changes["lora"] = _filled_lora(job, _model_type(config))
    job = replace(job, **changes)
    return _with_own_ways(job)


def _with_own_ways(job: Job) -> Job:
    changes: dict[str, Any] = {}
    for field, value in _own_ways(job).items():
        section, _, leaf = field.rpartition(".")
        if section:
            changes[section] = replace(changes.get(section, getattr(job, section)), **{leaf: value})
        else:
            changes[leaf] = value
    return replace(job, **changes) if changes else job


def _own_ways(job: Job) -> dict[str, Any]:
    """Fields that nobody wrote and this job's stack sets otherwise, by dotted name; none that are so already."""
    rules = _OWN_WAYS.get(job.stack)
    if rules is None:
        return {}
    values = job.flat()
    return {
        field: value
        for field, value in rules(job).items()
        if values[field] != value and (field in FORCED or not job.is_given(field))
    }


def _fsdp_qlora(job: Job) -> dict[str, Any]:
    """Its train.py: all in bfloat16, `precision: "bf16"`, and no preparation of PEFT's."""
    return {"autocast": None, **({"quantization.prepare_kbit": False} if job.method == "qlora" else {})}


def _trl(job: Job) -> dict[str, Any]:
    """`SFTTrainer.__init__` of TRL, from the tags of its repository: until 0.25 it prepares quantised models as PEFT's
    guide does; since 0.26 not, and adapters over them become bfloat16. With ZeRO-3, adapters keep the weights' dtype
    since 1.7, and checkpointing is reentrant since 0.28."""
    from tunecast.tape.build.stacks.trl import OWN_CASTS, OWN_CHECKPOINTS, ZERO_3_DTYPE, release_of_job

    if job.method == "full":
        return {}
    release = release_of_job(job)
    ways: dict[str, Any] = {}
    if job.quantization.format in BITSANDBYTES and release >= OWN_CASTS:
        ways |= {"quantization.prepare_kbit": False, "lora.adapter_dtype": "bfloat16"}
    if job.parallel.data == "zero3":
        if job.quantization.format is None and release >= ZERO_3_DTYPE:
            ways["lora.adapter_dtype"] = job.weights_dtype
        if job.gradient_checkpointing and release >= OWN_CHECKPOINTS:
            ways["checkpoint_reentrant"] = True
    return ways


def _automodel(job: Job) -> dict[str, Any]:
    """NeMo Automodel 0.5: components/distributed/config.py, `FSDP2Config`; components/_peft/lora.py, `PeftConfig`; the
    optimizer of its examples, torch.optim.AdamW as it is."""
    ways: dict[str, Any] = {"autocast": None, "gradient_checkpointing": False, "optimizer": "adamw_torch"}
    if job.hardware.gpus * job.hardware.nodes > 1 and job.parallel.data == "ddp":
        ways["parallel.data"] = "fsdp"
    if job.method != "full":
        ways |= {"lora.adapter_dtype": job.weights_dtype, "lora.rank": 8}
    if job.method == "qlora":
        ways["quantization.prepare_kbit"] = False
    return ways


_OWN_WAYS: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    "fsdp_qlora": _fsdp_qlora,
    "trl": _trl,
    "automodel": _automodel,
}
BITSANDBYTES = ("nf4", "fp4", "int8")
FORCED = ("checkpoint_reentrant",)
"""TRL sets it whatever the user said, with a warning."""


def fill_in_of(job: Job, model: ModelConfig) -> Job:
    """The same; config.json is read only where something is open."""
    return job if _is_filled_in(job) else fill_in(job, model.raw, model.dtype)


def _is_filled_in(job: Job) -> bool:
    lora = job.lora
    adapted = job.method == "full" or (lora.dropout is not None and lora.targets is not None)
    return adapted and job.weights_dtype != "auto" and not _own_ways(job)


def has_own_dtype(job: Job) -> bool:
    """Whether its stack loads weights in a dtype of its own, not the checkpoint's."""
    return _stack_dtype(job) is not None


def _stack_dtype(job: Job) -> str | None:
    if job.stack == "llama-factory":  # loads in bfloat16, and casts what is trained to float32 unless pure_bf16
        return "float32" if job.method == "full" else "bfloat16"
    if job.stack in ("megatron", "nemo"):  # --bf16, bf16_mixed: weights of 16 bits, masters in the optimizer
        return job.autocast or "float32"
    return DTYPE_OF_STACK.get(job.stack)


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """What config.json says the checkpoint is stored in; of a model with other parts, its language model's."""
    parts = (language_part(config)[1], config)
    given = next((part[name] for part in parts for name in ("dtype", "torch_dtype") if part.get(name)), None)
    name = given.removeprefix("torch.") if isinstance(given, str) else ""
    return name if name in DTYPES else None


def _filled_lora(job: Job, model_type: str) -> Lora:
    lora = job.lora
    if lora.targets is None:
        chosen = USUAL_TARGETS.get(model_type, "attention" if model_type in MANY_FROM_A_ROUTER else "all-linear")
        lora = replace(lora, targets=TARGETS_OF_STACK.get(job.stack, chosen))
    if lora.dropout is None:
        none = job.stack == "automodel" or _adapts_experts(job, lora.targets, model_type)
        lora = replace(lora, dropout=0.0 if none else DROPOUT)
    return lora


def _adapts_experts(job: Job, targets: str | tuple[str, ...] | None, model_type: str) -> bool:
    """Whether parameters of experts or routers get adapters, for which PEFT 0.21.0 refuses dropout."""
    moved = moved_names(model_type)
    if not moved or job.stack in TARGETS_OF_STACK:
        return False
    return targets == "all-linear" or (targets not in (None, "attention") and any(name in moved for name in targets))


def _model_type(config: Mapping[str, Any]) -> str:
    _, text = language_part(config)
    found = text.get("model_type") or config.get("model_type")
    return found if isinstance(found, str) else ""
