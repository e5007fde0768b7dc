"""LLaMA-Factory: `llamafactory-cli train train.yaml`, with its data described in dataset_info.json.

Keys      llamafactory/hparams/finetuning_args.py, `FinetuningArguments`; llamafactory/hparams/model_args.py,
          `ModelArguments`; llamafactory/hparams/data_args.py, `DataArguments`
Data      llamafactory/data/parser.py, `DatasetAttr`, `get_dataset_list`
Cards     llamafactory/launcher.py, `launch`: it starts torchrun itself, by these variables
Template  none is named: the tokenizer's own (llamafactory/data/template.py, `get_template_and_fix_tokenizer`)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.recipes.frameworks.llama_factory import ATTENTION, RELEASE
from tunecast.job.recipes.frameworks.llama_factory_tasks import TASKS
from tunecast.job.shardings import REPLICATED, SHARDINGS, sharding_of
from tunecast.launching.pins import releases_of, unpinned_of
from tunecast.launching.programs.accelerate import DEEPSPEED, accelerate_files, deepspeed_text, launch_command
from tunecast.launching.programs.columns import columns_of
from tunecast.launching.programs.settings import (
    MASTER_ADDR,
    MASTER_PORT,
    NODE_RANK,
    Machines,
    Places,
    environment_of,
    whole,
)
from tunecast.launching.programs.trainer import training_arguments
from tunecast.launching.rendering import CHECKPOINT, DATA, FIRST_STEPS, Command, TrainingProgram
from tunecast.launching.texts import yaml_text

NAME = "llama-factory"
CONFIG, DATA_SETS, DATA_SET = "train.yaml", "dataset_info.json", "train"
RESUMES = (f"resume_from_checkpoint={CHECKPOINT}",)
TWO_STEPS = ("max_steps=2", 'save_strategy="no"', 'eval_strategy="no"', f"output_dir={FIRST_STEPS}")
"""Quoted: YAML 1.1, which OmegaConf reads words as, takes `no` for a truth value."""
STAGES = {task: stage for stage, task in TASKS.items() if task != "ppo"}
INSTALLABLE = {"transformers_version": "5.6.0", "peft_version": "0.18.1", "trl_version": "0.24.0"}
"""The newest that llamafactory 0.9.5 installs with (the metadata of its wheel, Requires-Dist)."""
ACCELERATE = "1.11.0"
"""The same of accelerate."""
OF_CHATS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
            "system_tag": "system"}  # fmt: skip


def defaults(job: Job) -> dict[str, str]:
    return dict(INSTALLABLE)


def program(job: Job, machines: Machines, places: Places, extra: Mapping[str, object]) -> TrainingProgram:
    if job.task not in STAGES:
        raise Unsupported.at("task", f"got {job.task}; rendered for LLaMA-Factory are {', '.join(STAGES)}")
    sharding, values = sharding_of(job), settings(job, places)
    if machines.cpu:
        values, sharding = on_cpus(values), SHARDINGS[REPLICATED]
    files = {
        CONFIG: yaml_text({**values, **extra}),
        DATA_SETS: json.dumps({DATA_SET: data_set(job, places)}, indent=2) + "\n",
    }
    around = {} if machines.cpu else environment_of(job)
    environment = {**around, **cards(job, machines)}
    command: Command = ("llamafactory-cli", "train", CONFIG)
    if sharding.is_zero:
        files[DEEPSPEED] = deepspeed_text(job)
    if sharding.is_fsdp:
        files |= accelerate_files(job, machines)
        environment, command = around, launch_command(machines, "-m", "llamafactory.launcher", CONFIG)
    return TrainingProgram(
        NAME,
        command,
        files,
        environment,
        releases(job),
        unpinned_of(job),
        places.placeholders,
        places.carried,
        resumes=RESUMES,
        columns=(tuple(columns_of(job.data.path).names.values()),),
        first_steps=TWO_STEPS,
    )


def releases(job: Job) -> dict[str, str]:
    """Of what it is installed from, by the names of packages."""
    found = {**releases_of(job, RELEASE), "accelerate": ACCELERATE}
    found["llamafactory"] = found.pop(NAME)
    return found


def on_cpus(values: Mapping[str, Any]) -> dict[str, Any]:
    """Every process has the whole model; `pure_bf16` is refused there (llamafactory/hparams/parser.py,
    `get_train_args`), and parameters stay in float32."""
    left = {name: value for name, value in values.items() if name not in ("deepspeed", "pure_bf16")}
    return {**left, "use_cpu": True}


def cards(job: Job, machines: Machines) -> dict[str, str]:
    """Of several; `OPTIM_TORCH` would ask for expandable segments whatever the job says."""
    if machines.processes == 1:
        return {}
    said = {
        "FORCE_TORCHRUN": "1",
        "NPROC_PER_NODE": str(machines.gpus),
        "OPTIM_TORCH": str(int(job.allocator == "expandable_segments")),
    }
    if machines.nodes == 1:
        return said
    return {**said, "NNODES": str(machines.nodes), "NODE_RANK": NODE_RANK, "MASTER_ADDR": MASTER_ADDR,
            "MASTER_PORT": MASTER_PORT}  # fmt: skip


def settings(job: Job, places: Places) -> dict[str, Any]:
    shared = {"deepspeed": DEEPSPEED} if sharding_of(job).is_zero else {}
    return {
        "stage": STAGES[job.task],
        "do_train": True,
        "model_name_or_path": places.model,
        **method(job),
        "flash_attn": attention(job),
        "dataset_dir": ".",
        "dataset": DATA_SET,
        "cutoff_len": job.seq_len,
        **rows(job),
        **precision(job),
        **arguments(job),
        **shared,
    }


def method(job: Job) -> dict[str, Any]:
    if job.method == "full":
        return {"finetuning_type": "full"}
    lora = job.lora
    values: dict[str, Any] = {
        "finetuning_type": "lora",
        "lora_rank": lora.rank,
        "lora_alpha": whole(lora.alpha),
        "lora_dropout": lora.dropout_fraction,
        "lora_target": "all" if lora.targets == "all-linear" else ",".join(lora.targets or ()),
    }
    values |= {key: True for key, on in (("use_rslora", lora.rslora), ("use_dora", lora.dora)) if on}
    packed = job.quantization
    if packed.format == "int8":
        return {**values, "quantization_bit": 8}
    if packed.format in ("nf4", "fp4"):
        kind = {"quantization_type": packed.format, "double_quantization": packed.double_quant}
        return {**values, "quantization_bit": 4, **kind}
    return values


def attention(job: Job) -> str:
    found = next((name for name, kind in ATTENTION.items() if kind == job.attention), None)
    if found is None:
        raise Unsupported.at("attention", f"got {job.attention}; LLaMA-Factory has {', '.join(ATTENTION.values())}")
    return found


def rows(job: Job) -> dict[str, Any]:
    values: dict[str, Any] = {"packing": job.data.packing}
    if job.task in ("dpo", "kto"):
        values["pref_beta"] = whole(job.preference.beta)
    if job.data.num_proc > 1:
        values["preprocessing_num_workers"] = job.data.num_proc
    if job.data.held_back is not None:
        values["val_size"] = whole(job.data.held_back)
    elif job.run.eval_strategy != "no":
        raise UsageError.at(
            "data.held_back", "evaluations need data: say how much of data.path is held back, such as 0.05"
        )
    return values


def precision(job: Job) -> dict[str, Any]:
    """What is trained is float32 unless `pure_bf16` (llamafactory/model/adapter.py, `init_adapter`)."""
    return {"pure_bf16": True} if job.method == "full" and job.weights_dtype == "bfloat16" else {}


def arguments(job: Job) -> dict[str, Any]:
    """The Trainer's, but for what LLaMA-Factory has keys of its own for."""
    values = training_arguments(job)
    for name in ("gradient_checkpointing", "gradient_checkpointing_kwargs", "use_liger_kernel"):
        values.pop(name, None)
    if "liger" in job.kernels:
        values["enable_liger_kernel"] = True
    values["disable_gradient_checkpointing"] = not job.gradient_checkpointing
    if job.gradient_checkpointing and job.checkpoint_reentrant is not None:
        values["use_reentrant_gc"] = job.checkpoint_reentrant
    return values


def data_set(job: Job, places: Places) -> dict[str, Any]:
    """One of dataset_info.json. A name that is a whole path is taken as it is (`os.path.join`)."""
    columns = columns_of(job.data.path)
    said: dict[str, Any] = {"file_name": places.data_or_placeholder}
    if columns.format == "messages":
        tags = OF_CHATS if columns.speaker == "role" else {}
        return {**said, "formatting": "sharegpt", "columns": dict(columns.names), **({"tags": tags} if tags else {})}
    if columns.format == "preference":
        return {**said, "ranking": True, "columns": dict(columns.names)}
    if columns.format == "text" and job.task == "pretrain":
        return {**said, "columns": {"prompt": columns.names["text"]}}
    if columns.format == "text":
        raise UsageError.at(
            "data.path",
            "rows of text alone are task pretrain's with LLaMA-Factory; sft wants a prompt and an answer, or chats",
        )
    return {**said, "columns": dict(columns.names)}


__all__ = ["DATA", "NAME", "defaults", "program"]
