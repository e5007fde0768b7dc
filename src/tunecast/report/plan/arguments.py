"""A choice's settings as one types them: the launcher's line, and the arguments of transformers' Trainer.

Source  accelerate 1.15.0, `accelerate launch --help`; transformers 5.17.0, TrainingArguments; PEFT's guide to FSDP and
        QLoRA ("bnb_4bit_quant_storage: the same dtype as the rest of the model").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.planning.choice import Choice

_ARGUMENTS: Mapping[str, Callable[[object], str]] = {
    "micro_batch": lambda value: f"per_device_train_batch_size={value}",
    "grad_accum": lambda value: f"gradient_accumulation_steps={value}",
    "gradient_checkpointing": lambda value: f"gradient_checkpointing={value}",
    "kernels": lambda value: f"use_liger_kernel={isinstance(value, tuple) and 'liger' in value}",
    "compile": lambda value: f"torch_compile={value}",
    "optimizer": lambda value: f'optim="{value}"',
    "run.save_steps": lambda value: f"save_steps={value}",
    "run.save_only_model": lambda value: f"save_only_model={value}",
    "data.num_proc": lambda value: f"dataset_num_proc={value}",
    "attention": lambda value: f'attn_implementation="{value}"',
    "weights_dtype": lambda value: f'dtype="{value}"',
    "parallel.sync_each_batch": lambda value: (
        f'accelerator_config={{"gradient_accumulation_kwargs": {{"sync_each_batch": {value}}}}}'
    ),
    "parallel.cpu_ram_efficient_loading": lambda value: f'fsdp_config={{"cpu_ram_efficient_loading": {value}}}',
    "parallel.load_on_rank_0": lambda value: "the model is loaded on rank 0 alone (docs/host_memory.md)",
    "parallel.state_dict_type": lambda value: f'fsdp_config={{"state_dict_type": "{str(value).upper()}_STATE_DICT"}}',
    "quantization.prepare_kbit": lambda value: (
        "prepare_model_for_kbit_training is " + ("called" if value else "not called")
    ),
}


def launcher(choice: Choice) -> str:
    """How its processes are started; '' for stacks that start them their own way."""
    job, fleet = choice.job, choice.fleet
    if job is None or not stack_of(job).uses_trainer:
        return ""
    if job.parallel.layers > 1:
        return 'python train.py, with device_map="auto"'
    if fleet.cards == 1:
        return "python train.py"
    parts = [f"accelerate launch --num_processes {fleet.cards}"]
    parts += [f"--num_machines {fleet.nodes}"] if fleet.nodes > 1 else []
    return f"{' '.join(parts)} {sharding_of(job).launcher} train.py"


def arguments(choice: Choice) -> list[str]:
    """What of the Trainer's differs from the user's job."""
    job = choice.job
    if job is None or not stack_of(job).uses_trainer:
        return []
    flat = job.flat()
    found = [write(flat[name]) for name, write in _ARGUMENTS.items() if name in choice.changes]
    if job.method == "qlora" and sharding_of(job).cuts_weights and choice.fleet.cards > 1:
        found.append(f'bnb_4bit_quant_storage="{job.weights_dtype}"')
    return found
