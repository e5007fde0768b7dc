"""TRL's own scripts, started by accelerate: `accelerate launch -m trl.scripts.sft --config sft.yaml`.

Keys: trl/scripts/sft.py, whose arguments are `SFTConfig`, `ModelConfig` and `DatasetMixtureConfig`;
trl/scripts/utils.py, `DatasetConfig`, handed to `datasets.load_dataset`; of other tasks trl/trainer/dpo_config.py,
`DPOConfig`; trl/trainer/kto_config.py, `KTOConfig`; trl/trainer/reward_config.py, `RewardConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.releases import RELEASES, minor
from tunecast.job.texts.columns import CHATS
from tunecast.launching.pins import releases_of, unpinned_of
from tunecast.launching.programs.accelerate import accelerate_files, launch_command, on_cpu
from tunecast.launching.programs.columns import BUILDERS
from tunecast.launching.programs.settings import Machines, Places, environment_of, whole
from tunecast.launching.programs.trainer import training_arguments
from tunecast.launching.rendering import CHECKPOINT, DATA, FIRST_STEPS, TrainingProgram
from tunecast.launching.texts import yaml_text

NAME = "trl"
TASKS = ("sft", "dpo", "kto", "reward")
"""Those whose scripts train with data alone: others want a reward, which is a program."""
RESUMES = ("--resume_from_checkpoint", CHECKPOINT)
TWO_STEPS = ("--max_steps", "2", "--save_strategy", "no", "--eval_strategy", "no", "--output_dir", FIRST_STEPS)
COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "sft": (*((name,) for name in CHATS[:2]), ("prompt", "completion"), ("text",), ("input_ids",)),
    "dpo": (("chosen", "rejected"),),
    "reward": (("chosen", "rejected"),),
    "kto": (("prompt", "completion", "label"),),
}
"""By task, what its trainer takes (TRL 1.16.0, docs/source/dataset_formats.md)."""
INSTALLABLE: dict[str, str] = {}
"""Releases that are followed go together."""
OLDEST = (1, 0)
"""The first release whose scripts take what is written here: `dtype`, and `datasets` of the mixture."""


def program(job: Job, machines: Machines, places: Places, extra: Mapping[str, object]) -> TrainingProgram:
    """`extra`: further keys of the trainer's, which say nothing that the job says."""
    require_rendered(job)
    config = f"{job.task}.yaml"
    script = ("-m", f"trl.scripts.{job.task}", "--config", config)
    values = {**settings(job, places), **extra}
    files = {config: yaml_text(values, heading(places)), **accelerate_files(job, machines)}
    command, environment = launch_command(machines, *script), environment_of(job)
    if machines.cpu:
        files = {config: yaml_text({**values, "use_cpu": True}, heading(places))}
        command, environment = on_cpu(machines, *script), {"ACCELERATE_USE_CPU": "true"}
    return TrainingProgram(
        NAME,
        command,
        files,
        environment,
        releases_of(job),
        unpinned_of(job),
        places.placeholders,
        places.carried,
        resumes=RESUMES,
        columns=COLUMNS.get(job.task, ()),
        first_steps=TWO_STEPS,
    )


def defaults(job: Job) -> dict[str, str]:
    return dict(INSTALLABLE)


def heading(places: Places) -> list[str]:
    return [f"{DATA.text} stands for the training data: set {each.field}" for each in places.placeholders]


def require_rendered(job: Job) -> None:
    if job.task not in TASKS:
        raise Unsupported.at(
            "task", f"got {job.task}; rendered for TRL are {', '.join(TASKS)}. To fix: launch the script that trains it"
        )
    release = job.trl_version or RELEASES["trl"].newest
    if minor(release) < OLDEST:
        raise Unsupported.at("trl_version", f"got {release}; rendered for TRL are releases from 1.0 on")


def settings(job: Job, places: Places) -> dict[str, Any]:
    return {
        "model_name_or_path": places.model,
        "dtype": job.weights_dtype,
        "attn_implementation": job.attention,
        **adapters(job),
        **quantization(job),
        **data(job, places),
        "max_length": job.seq_len,
        **({"activation_offloading": True} if job.offload_activations else {}),
        **(sft(job) if job.task == "sft" else preferences(job)),
        **training_arguments(job),
    }


def adapters(job: Job) -> dict[str, Any]:
    if job.method == "full":
        return {}
    lora = job.lora
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets or ())
    values: dict[str, Any] = {
        "use_peft": True,
        "lora_r": lora.rank,
        "lora_alpha": whole(lora.alpha),
        "lora_dropout": lora.dropout_fraction,
        "lora_target_modules": [targets] if isinstance(targets, str) else targets,
    }
    if job.task == "reward":
        values["lora_task_type"] = "SEQ_CLS"
    return values | {key: True for key, on in (("use_rslora", lora.rslora), ("use_dora", lora.dora)) if on}


def quantization(job: Job) -> dict[str, Any]:
    packed = job.quantization
    if packed.format == "int8":
        return {"load_in_8bit": True}
    if packed.format in ("nf4", "fp4"):
        return {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": packed.format,
            "use_bnb_nested_quant": packed.double_quant,
        }
    return {}


def data(job: Job, places: Places) -> dict[str, Any]:
    path = places.data_or_placeholder
    ending = PurePath(path).suffix.lower()
    if places.data is None or not ending:
        source: dict[str, Any] = {"path": path}
    elif ending in BUILDERS:
        source = {"path": BUILDERS[ending], "data_files": path}
    else:
        raise UsageError.at("data.path", f"got a file {ending}; allowed with TRL: {', '.join(BUILDERS)}, or a folder")
    values: dict[str, Any] = {"datasets": [source]}
    if job.data.held_back is not None:
        values["test_split_size"] = whole(job.data.held_back)
    elif job.run.eval_strategy != "no":
        raise UsageError.at(
            "data.held_back", "evaluations need data: say how much of data.path is held back, such as 0.05"
        )
    if job.data.num_proc > 1:
        values["dataset_num_proc"] = job.data.num_proc
    return values


def sft(job: Job) -> dict[str, Any]:
    data = job.data
    values: dict[str, Any] = {"packing": data.packing}
    if data.packing:
        values["packing_strategy"] = data.packing_strategy
    if data.pad_to_multiple_of is not None:
        values["pad_to_multiple_of"] = data.pad_to_multiple_of
    if not data.completion_only:
        values["completion_only_loss"] = False
    if data.prepared:
        values["dataset_kwargs"] = {"skip_prepare_dataset": True}
    return values


def preferences(job: Job) -> dict[str, Any]:
    if job.task == "reward":
        return {}
    values: dict[str, Any] = {"beta": whole(job.preference.beta)}
    return values | ({"precompute_ref_log_probs": True} if job.preference.reference == "precomputed" else {})
