"""A job with what follows from its model filled in: the format of a checkpoint that is stored quantised, the dtype its
weights load in, and what gets adapters.

These are the fields whose default is a rule rather than a value. Everything behind the doors that call this
(`fold_job`, the traced recipes, predictions, plans) sees values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.job import Job, Lora
from tunecast.job.model import ModelConfig, language_part
from tunecast.job.names import DTYPES
from tunecast.job.stacks import stack_of
from tunecast.job.stored import is_packed
from tunecast.records import replace
from tunecast.tape.build.adapted_parameters import moved_names
from tunecast.tape.build.adapters import MAMBA, USUAL_TARGETS
from tunecast.tape.build.packed.choice import with_checkpoint_format
from tunecast.tape.build.stacks import module_of, task_program

DROPOUT = 0.05
"""TRL 1.16.0, ModelConfig.lora_dropout."""

NOT_ALL_LINEAR: Mapping[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("llama4_text", *MAMBA), "attention"),
    "deepseek_v4": ("q_a_proj", "q_b_proj", "kv_proj", "o_b_proj"),
}
"""Architectures that cannot be trained with `all-linear`, and what is taken instead: a layer that PEFT adapts, and the
forward pass fails (a router that returns several tensors, a projection by groups); or one of Mamba's, which PEFT
refuses."""


def fill_in(job: Job, config: Mapping[str, Any], stored: str | None = None) -> Job:
    """`stored`: the dtype of most of the checkpoint's values, where config.json says nothing and its headers were read.

    Idempotent: a job without such a field is given back as it is.
    """
    job = with_checkpoint_format(job, config)
    if _is_filled_in(job):
        return job
    changes: dict[str, Any] = {}
    if job.weights_dtype == "auto":
        named = (stack_of(job).weights_dtype(job), dtype_of(config), stored if stored in DTYPES else None)
        changes["weights_dtype"] = next(filter(None, named), "float32")
    if job.method != "full":
        changes["lora"] = _filled_lora(job, _model_type(config))
    if job.vision.has_images and job.vision.pixels is None:
        from tunecast.job.images import pixels_of  # few jobs have any

        changes["vision"] = replace(job.vision, pixels=pixels_of(job.vision, config, job.seq_len))
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
    rules = getattr(task_program(job), "defaults", None) or getattr(module_of(job.stack), "defaults", None)
    if rules is None:
        return {}
    values = job.flat()
    return {
        field: value
        for field, value in rules(job).items()
        if values[field] != value and (field in FORCED or values[field] is None or not job.is_given(field))
    }


FORCED = ("checkpoint_reentrant",)
"""TRL sets it whatever the user said, with a warning."""


def fill_in_of(job: Job, model: ModelConfig) -> Job:
    """The same, and what follows from the data a job names; config.json is read only where something is open."""
    job = _with_own_data(job)
    return job if _is_filled_in(job) and not is_packed(model.raw_json) else fill_in(job, model.raw, model.dtype)


def _with_own_data(job: Job) -> Job:
    if job.data.path is None and job.data.held_back is None:
        return job
    from tunecast.job.own_data import with_own_data  # few jobs name any

    return with_own_data(job)


def _is_filled_in(job: Job) -> bool:
    lora = job.lora
    adapted = job.method == "full" or (lora.dropout is not None and lora.targets is not None)
    sized = not job.vision.has_images or job.vision.pixels is not None
    return adapted and sized and job.weights_dtype != "auto" and not _own_ways(job)


def has_own_dtype(job: Job) -> bool:
    """Whether its stack loads weights in a dtype of its own, not the checkpoint's."""
    return stack_of(job).weights_dtype(job) is not None


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """What config.json says the checkpoint is stored in; of a model with other parts, its language model's."""
    parts = (language_part(config)[1], config)
    given = next((part[name] for part in parts for name in ("dtype", "torch_dtype") if part.get(name)), None)
    name = given.removeprefix("torch.") if isinstance(given, str) else ""
    return name if name in DTYPES else None


def _filled_lora(job: Job, model_type: str) -> Lora:
    lora, stack = job.lora, stack_of(job)
    if lora.targets is None:
        chosen = USUAL_TARGETS.get(model_type) or NOT_ALL_LINEAR.get(model_type, "all-linear")
        lora = replace(lora, targets=chosen if stack.targets is None else stack.targets)
    if lora.dropout is None:
        usual = 0.0 if _adapts_experts(job, lora.targets, model_type) else DROPOUT
        lora = replace(lora, dropout=usual if stack.dropout is None else stack.dropout)
    return lora


def _adapts_experts(job: Job, targets: str | tuple[str, ...] | None, model_type: str) -> bool:
    """Whether parameters of experts or routers get adapters, for which PEFT 0.21.0 refuses dropout."""
    moved = moved_names(model_type)
    if not moved or stack_of(job).targets is not None:
        return False
    return targets == "all-linear" or (targets not in (None, "attention") and any(name in moved for name in targets))


def _model_type(config: Mapping[str, Any]) -> str:
    _, text = language_part(config)
    found = text.get("model_type") or config.get("model_type")
    return found if isinstance(found, str) else ""
