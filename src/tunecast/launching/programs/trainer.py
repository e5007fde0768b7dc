"""Keys of transformers' TrainingArguments that say a job's fields: what TRL and LLaMA-Factory are told alike.

Keys: transformers/training_args.py, `TrainingArguments`.
"""

from __future__ import annotations

from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.optimizers import DEFAULT_OPTIMIZER, OF_TRANSFORMERS
from tunecast.job.releases import RELEASES, minor
from tunecast.launching.programs.settings import liger_config, share_of_run, whole
from tunecast.launching.rendering import OUTPUT

STRATEGY_SINCE = (5, 0)
"""transformers whose samplers `train_sampling_strategy` names; before, `group_by_length` is a switch."""


def training_arguments(job: Job) -> dict[str, Any]:
    """Of every trainer that takes them, in the order people write them."""
    return {"output_dir": OUTPUT, **_batches(job), **_memory(job), **_speed(job), **_loader(job), **_between_steps(job)}


def _batches(job: Job) -> dict[str, Any]:
    steps = {"max_steps": job.run.max_steps} if job.run.max_steps else {"num_train_epochs": whole(job.data.epochs)}
    return {
        "per_device_train_batch_size": job.micro_batch,
        "gradient_accumulation_steps": job.grad_accum,
        **steps,
    }


def _memory(job: Job) -> dict[str, Any]:
    if job.optimizer not in OF_TRANSFORMERS:
        raise Unsupported.at(
            "optimizer",
            f"got {job.optimizer}, for which transformers' Trainer has no name; nearest: {DEFAULT_OPTIMIZER}",
        )
    values: dict[str, Any] = {
        "optim": job.optimizer,
        "max_grad_norm": whole(job.max_grad_norm),
        "bf16": job.autocast == "bfloat16",
        "fp16": job.autocast == "float16",
        "gradient_checkpointing": job.gradient_checkpointing,
    }
    if job.gradient_checkpointing and job.checkpoint_reentrant is not None:
        values["gradient_checkpointing_kwargs"] = {"use_reentrant": job.checkpoint_reentrant}
    return values


def _speed(job: Job) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if any(name.startswith("liger") for name in job.kernels):
        values["use_liger_kernel"] = True
        if (config := liger_config(job)) is not None:
            values["liger_kernel_config"] = config
    if job.compile:
        values["torch_compile"] = True
    if job.parallel.sync_each_batch:
        values["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return values


def _loader(job: Job) -> dict[str, Any]:
    values: dict[str, Any] = {"seed": job.data.seed, "dataloader_num_workers": job.data.workers}
    if job.data.drop_last:
        values["dataloader_drop_last"] = True
    if job.data.group_by_length:
        release = job.transformers_version or RELEASES["transformers"].newest
        named = minor(release) >= STRATEGY_SINCE
        values |= {"train_sampling_strategy": "group_by_length"} if named else {"group_by_length": True}
    return values


def _between_steps(job: Job) -> dict[str, Any]:
    run = job.run
    values: dict[str, Any] = {"eval_strategy": run.eval_strategy}
    if run.eval_strategy != "no":
        values["per_device_eval_batch_size"] = run.eval_batch
    if run.eval_strategy == "steps":
        values["eval_steps"] = 500 if run.eval_steps is None else run.eval_steps
        if run.evals_per_epoch is not None:
            values["eval_steps"] = share_of_run(job, "run.evals_per_epoch", run.evals_per_epoch)
    values["save_strategy"] = run.save_strategy
    if run.save_strategy == "steps":
        values["save_steps"] = run.save_steps
        if run.saves_per_epoch is not None:
            values["save_steps"] = share_of_run(job, "run.saves_per_epoch", run.saves_per_epoch)
    if run.save_total_limit is not None:
        values["save_total_limit"] = run.save_total_limit
    if run.save_only_model:
        values["save_only_model"] = True
    return values
