"""Axolotl: `accelerate launch -m axolotl.cli.train axolotl.yaml`.

Keys      axolotl/utils/schemas/config.py, `AxolotlInputConfig`; axolotl/utils/schemas/training.py,
          `HyperparametersConfig`; axolotl/utils/schemas/peft.py, `LoraConfig`
Data      axolotl/utils/schemas/datasets.py, `SFTDataset`, `UserDefinedPrompterType`
Cards     axolotl/utils/schemas/fsdp.py, `FSDPConfig`; accelerate's file says how many, and Axolotl how they share
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.kernels import LORA_TRITON
from tunecast.job.optimizers import OF_TRANSFORMERS
from tunecast.job.recipes.frameworks.axolotl_keys import LIGER, LORA_KERNELS, RELEASE
from tunecast.job.shardings import sharding_of
from tunecast.launching.pins import releases_of, unpinned_of
from tunecast.launching.programs.accelerate import (
    CONFIG,
    DEEPSPEED,
    deepspeed_text,
    fsdp_section,
    fsdp_version,
    launch_command,
    on_cpu,
    plain_text,
)
from tunecast.launching.programs.columns import Columns, columns_of
from tunecast.launching.programs.settings import Machines, Places, environment_of, share_of_run, whole
from tunecast.launching.rendering import CHECKPOINT, FIRST_STEPS, OUTPUT, Command, TrainingProgram
from tunecast.launching.texts import yaml_text

NAME = "axolotl"
TRAINING = "axolotl.yaml"
RESUMES = (f"--resume_from_checkpoint={CHECKPOINT}",)
TWO_STEPS = ("--max_steps=2", f"--output_dir={FIRST_STEPS}")
"""It saves after the last one: another `save_strategy` beside the file's `save_steps` is refused
(axolotl/utils/schemas/validation.py, `check_saves`)."""
TASKS: Mapping[str, Mapping[str, object]] = {"sft": {}, "dpo": {"rl": "dpo"}}
"""What says each task that is rendered."""
INSTALLABLE = {
    "torch_version": "2.13.0",
    "transformers_version": "5.16.1",
    "peft_version": "0.20.0",
    "trl_version": "1.9.0",
    "bitsandbytes_version": "0.50.2",
    "liger_version": "0.8.1",
}
"""What axolotl 0.19.0 installs (the metadata of its wheel, Requires-Dist); of torch the newest."""
ACCELERATE = "1.13.0"
"""The same of accelerate."""
RATES = {"full": 2e-5, "lora": 2e-4}
"""Axolotl asks for one: those of its examples (examples/llama-3/fft-8b.yaml, lora-8b.yml)."""
NOT_ON_CPUS = ("deepspeed", "fsdp_config", "fsdp_version", "dp_replicate_size")
LIGER_KEYS = {kernel: key for key, kernel in reversed(LIGER.items())}
LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
USUAL_LIGER = ("liger_rope", "liger_rms_norm", "liger_glu", "liger_fused_linear_cross_entropy")
"""What `liger` stands for (job/kernels.py, `by_whole`)."""


def defaults(job: Job) -> dict[str, str]:
    return dict(INSTALLABLE)


def program(job: Job, machines: Machines, places: Places, extra: Mapping[str, object]) -> TrainingProgram:
    if job.task not in TASKS:
        raise Unsupported.at("task", f"got {job.task}; rendered for Axolotl are {', '.join(TASKS)}")
    script, values = ("-m", "axolotl.cli.train", TRAINING), settings(job, places)
    if machines.cpu:
        alone = machines.processes == 1  # one that torchrun starts would be DDP's
        command: Command = ("python", *script) if alone else on_cpu(machines, *script)
        environment = {"ACCELERATE_USE_CPU": "true"}
        files = {TRAINING: yaml_text({**on_cpus(values), **extra})}
    else:
        command, environment = launch_command(machines, *script), environment_of(job)
        files = {TRAINING: yaml_text({**values, **extra}), CONFIG: plain_text(job, machines)}
    if sharding_of(job).is_zero and not machines.cpu:
        files[DEEPSPEED] = deepspeed_text(job)
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
    """Of what it is installed from."""
    return {**releases_of(job, RELEASE), "accelerate": ACCELERATE}


def on_cpus(values: Mapping[str, Any]) -> dict[str, Any]:
    """In float32: Axolotl has no key by which the Trainer is told to take bfloat16 on CPUs (`use_cpu`)."""
    left = {name: value for name, value in values.items() if name not in NOT_ON_CPUS}
    return {**left, "bf16": False, "fp16": False}


def settings(job: Job, places: Places) -> dict[str, Any]:
    return {
        "base_model": places.model,
        **TASKS[job.task],
        **method(job),
        **kernels(job),
        **precision(job),
        "attn_implementation": job.attention,
        "datasets": [data_set(job, places)],
        **rows(job),
        **steps(job),
        **between_steps(job),
        **sharing(job),
        "learning_rate": RATES["full" if job.method == "full" else "lora"],
        "output_dir": OUTPUT,
    }


def method(job: Job) -> dict[str, Any]:
    if job.method == "full":
        return {}
    lora, packed = job.lora, job.quantization
    values: dict[str, Any] = {"adapter": "qlora" if packed.format in ("nf4", "fp4") else "lora"}
    if packed.format in ("nf4", "fp4"):
        kinds = {"bnb_4bit_quant_type": packed.format, "bnb_4bit_use_double_quant": packed.double_quant}
        values |= {"load_in_4bit": True, "bnb_config_kwargs": kinds}
    if packed.format == "int8":
        values["load_in_8bit"] = True
    values |= {"lora_r": lora.rank, "lora_alpha": whole(lora.alpha), "lora_dropout": lora.dropout_fraction}
    if isinstance(lora.targets, str):
        values["lora_target_linear"] = True
        if lora.targets != "all-linear":
            raise Unsupported.at("lora.targets", f"got {lora.targets}; Axolotl has all-linear, or names of modules")
    else:
        values["lora_target_modules"] = list(lora.targets or ())
    values |= {key: True for key, on in (("peft_use_rslora", lora.rslora), ("peft_use_dora", lora.dora)) if on}
    fused = LORA_TRITON in job.kernels
    return values | dict.fromkeys(LORA_KERNELS, fused)


def kernels(job: Job) -> dict[str, Any]:
    named = {kernel for kernel in job.kernels if kernel in LIGER_KEYS}
    chosen = named | (set(USUAL_LIGER) if "liger" in job.kernels else set())
    if not chosen:
        return {}
    return {"plugins": [LIGER_PLUGIN], **{key: True for kernel, key in LIGER_KEYS.items() if kernel in chosen}}


def precision(job: Job) -> dict[str, Any]:
    """Weights load in what is computed in (axolotl/utils/config/__init__.py, `resolve_dtype`)."""
    if job.autocast == "bfloat16":
        return {"bf16": True}
    if job.autocast == "float16":
        return {"bf16": False, "fp16": True}
    return {"bf16": False, "fp16": False, **({job.weights_dtype: True} if job.weights_dtype != "float32" else {})}


def rows(job: Job) -> dict[str, Any]:
    data = job.data
    values: dict[str, Any] = {"sequence_len": job.seq_len, "sample_packing": data.packing}
    values["excess_length_strategy"] = "truncate"  # by itself it drops longer rows, which the prediction cuts
    if data.pad_to_multiple_of is not None:
        values["pad_to_multiple_of"] = data.pad_to_multiple_of
    if data.packing:
        values["pad_to_sequence_len"] = False
    if data.group_by_length:
        values["group_by_length"] = True
    values |= {"seed": data.seed, "dataloader_num_workers": data.workers}
    if data.drop_last:
        values["dataloader_drop_last"] = True
    if data.num_proc > 1:
        values["dataset_num_proc"] = data.num_proc
    return values


def steps(job: Job) -> dict[str, Any]:
    if job.optimizer not in OF_TRANSFORMERS:
        raise Unsupported.at("optimizer", f"got {job.optimizer}; rendered for Axolotl are transformers' own")
    length = {"max_steps": job.run.max_steps} if job.run.max_steps else {"num_epochs": whole(job.data.epochs)}
    values: dict[str, Any] = {
        "micro_batch_size": job.micro_batch,
        "gradient_accumulation_steps": job.grad_accum,
        **length,
        "optimizer": job.optimizer,
        "max_grad_norm": whole(job.max_grad_norm),
        "gradient_checkpointing": job.gradient_checkpointing,
    }
    if job.gradient_checkpointing and job.checkpoint_reentrant is not None:
        values["gradient_checkpointing_kwargs"] = {"use_reentrant": job.checkpoint_reentrant}
    if job.offload_activations:
        values["activation_offloading"] = True
    if job.task == "dpo":
        values["rl_beta"] = whole(job.preference.beta)
    return values


def between_steps(job: Job) -> dict[str, Any]:
    run = job.run
    values: dict[str, Any] = {"save_strategy": run.save_strategy}
    if run.save_strategy == "steps":
        values = _rhythm(job, "save", run.save_steps, run.saves_per_epoch)
    if run.save_total_limit is not None:
        values["save_total_limit"] = run.save_total_limit
    if run.save_only_model:
        values["save_only_model"] = True
    if job.data.held_back is not None:
        values["val_set_size"] = whole(job.data.held_back)
    elif run.eval_strategy != "no":
        raise UsageError.at(
            "data.held_back", "evaluations need data: say how much of data.path is held back, such as 0.05"
        )
    if run.eval_strategy == "epoch":
        values["eval_strategy"] = "epoch"
    elif run.eval_strategy == "steps":
        values |= _rhythm(job, "eval", run.eval_steps or 500, run.evals_per_epoch)
    if run.eval_strategy != "no":
        values["eval_batch_size"] = run.eval_batch
    return values


def _rhythm(job: Job, what: str, steps: int, per_epoch: float | None) -> dict[str, Any]:
    """Whole numbers an epoch have a key of their own (axolotl/utils/config/__init__.py, `normalize_config`)."""
    if per_epoch is None:
        return {f"{what}_steps": steps}
    share = share_of_run(job, f"run.{what}s_per_epoch", per_epoch)
    return {f"{what}s_per_epoch": whole(per_epoch)} if per_epoch.is_integer() else {f"{what}_steps": share}


def sharing(job: Job) -> dict[str, Any]:
    sharding = sharding_of(job)
    values: dict[str, Any] = {}
    if sharding.is_zero:
        values["deepspeed"] = DEEPSPEED
    if sharding.is_fsdp:
        section = {name.removeprefix("fsdp_"): value for name, value in fsdp_section(job).items()}
        section.pop("version")
        values |= {"fsdp_version": fsdp_version(job), "fsdp_config": section}
    if sharding.replicates_machines:
        values["dp_replicate_size"] = job.parallel.replicate or job.hardware.nodes
    if job.parallel.sync_each_batch:
        values["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return values


def data_set(job: Job, places: Places) -> dict[str, Any]:
    columns = columns_of(job.data.path)
    source: dict[str, Any] = {"path": places.data_or_placeholder}
    if places.data is not None and places.data.lower().endswith((".json", ".jsonl")):
        source["ds_type"] = "json"
    return {**source, **prompts(job, columns)}


def prompts(job: Job, columns: Columns) -> dict[str, Any]:
    """How rows become text, by what their columns hold."""
    if job.task == "dpo":
        return {"type": "chat_template.default"}
    if columns.format == "messages":
        names = {"role": "from", "content": "value"}
        mapped = {"message_property_mappings": names} if columns.speaker == "from" else {}
        return {"type": "chat_template", "field_messages": columns.names["messages"], **mapped}
    if columns.format == "text":
        return {"type": "completion", "field": columns.names["text"]}
    if columns.format == "preference":
        raise UsageError.at("data.path", "got pairs of answers with task sft; allowed: with task dpo")
    fields = {"field_instruction": columns.names["prompt"], "field_output": columns.names["response"]}
    if "query" in columns.names:
        fields |= {"field_input": columns.names["query"], "format": "{instruction}\n{input}"}
    else:
        fields["format"] = "{instruction}"
    return {"type": {**fields, "no_input_format": "{instruction}"}}
