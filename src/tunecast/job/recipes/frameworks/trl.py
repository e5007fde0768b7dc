"""TRL's YAML, as `trl sft --config x.yaml` and the recipes of alignment-handbook and open-r1 have it.

Keys: trl/scripts/sft.py, whose arguments are `ScriptArguments`, `SFTConfig`, `ModelConfig` and `DatasetMixtureConfig`;
of other trainers their own config in the place of SFTConfig (huggingface_tasks.py);
`env` and what wins over what: trl/scripts/utils.py, `TrlParser.parse_args_and_config`. No key names the task: the
command does, or else the keys that only one trainer has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tunecast.job.names import LANGUAGE, TASKS
from tunecast.job.recipes import huggingface, huggingface_keys, huggingface_tasks
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.parts.accelerate import read_accelerate
from tunecast.job.recipes.request import Invocation, ReadRequest
from tunecast.job.recipes.words import Word, flags_of
from tunecast.job.releases import RELEASES

NAME = "trl"
RELEASE = RELEASES["trl"].newest
DATA = ("dataset_name", "datasets.*.path", "datasets.*.data_files")
WORDS = huggingface_keys.WORDS
DEFAULTS = {
    **huggingface_keys.TRL_ARGUMENTS,
    **huggingface_keys.SFT_CONFIG,
    **huggingface_keys.MODEL_CONFIG,
    **huggingface_tasks.DEFAULTS,
}
WITHOUT_EFFECT = (
    *huggingface_keys.WITHOUT_EFFECT,
    *huggingface_keys.SFT_WITHOUT_EFFECT,
    *("wandb_*", "benchmarks", "callbacks", "system_prompt", "hub_model_revision", "overwrite_hub_revision"),
    *("push_to_hub_revision", "env.*"),
)
OWN_KEYS = (
    *("dataset_name", "dataset_mixture", "dataset_mixer", "datasets", "use_peft", "max_seq_length", "max_length"),
    *("packing", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "num_train_epochs"),
    *("output_dir", "eval_strategy", "bf16"),
)
OTHERS_KEYS = ("stage", "finetuning_type", "cutoff_len", "dataset_dir", "sequence_len", "micro_batch_size", "recipe")
"""LLaMA-Factory's and Axolotl's."""

TASK_KEYS: Mapping[str, tuple[str, ...]] = {
    "ppo": ("reward_model_path", "num_ppo_epochs", "kl_coef", "missing_eos_penalty", "sft_model_path"),
    "distill": ("teacher_model_name_or_path", "lmbda", "teacher_model_init_kwargs"),
    "rloo": ("rloo_k", "rloo_beta"),
    "grpo": ("reward_funcs", "num_generations", "reward_weights", "steps_per_generation", "vllm_mode", "use_vllm"),
    "kto": ("desirable_weight", "undesirable_weight"),
    "cpo": ("cpo_alpha", "simpo_gamma"),
    "reward": ("center_rewards_coefficient",),
    "prm": ("step_separator", "train_on_last_step_only"),
    "dpo": ("beta", "precompute_ref_log_probs", "sync_ref_model", "rpo_alpha", "f_divergence_type", "ref_model"),
}
"""Keys that only one trainer has, those of more particular trainers first."""
LOSSES = ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero", "apo_down")
"""Of DPOConfig's loss_type."""
COMMANDS: Mapping[str, str] = {
    **{name: name for name in ("sft", "pretrain", "dpo", "kto", "orpo", "cpo", "simpo", "reward", "prm")},
    **{name: name for name in ("grpo", "rloo", "ppo", "bco", "xpo", "gold", "sdft", "sdpo", "tpo")},
    **{"gkd": "distill", "distillation": "distill", "online_dpo": "online dpo", "nash_md": "nash-md"},
}
"""What a command's or script's name says: a task, or what is refused by that name."""
SCRIPT = re.compile(rf"(?:run_|train_)?({'|'.join(sorted(COMMANDS, key=len, reverse=True))})(?:_.*)?")

ACCELERATE_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "single_gpu": {"distributed_type": "NO"},
    "multi_gpu": {"distributed_type": "MULTI_GPU"},
    "zero1": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 1}},
    "zero2": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}},
    "zero3": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}},
    "fsdp1": {
        "distributed_type": "FSDP",
        "fsdp_config": {"version": 1, "cpu_ram_efficient_loading": True, "state_dict_type": "FULL_STATE_DICT"},
    },
    "fsdp2": {
        "distributed_type": "FSDP",
        "fsdp_config": {"version": 2, "cpu_ram_efficient_loading": True, "state_dict_type": "FULL_STATE_DICT"},
    },
}
"""What --accelerate_config may name: trl/accelerate_configs. Each but the first starts 8 processes."""
PROCESSES = 8
MODULES = "trl.scripts."


def recognises(document: Document) -> bool:
    """The model's name beside a trainer's arguments."""
    if not document.has("model_name_or_path") or any(map(document.has, OTHERS_KEYS)):
        return False
    if document.file.lower().endswith(".json") and not any(map(document.has, ("use_peft", "packing"))):
        return False  # of a script of transformers' (training_arguments.py)
    return any(map(document.has, OWN_KEYS))


def read(draft: Draft, request: ReadRequest) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    draft.put("stack", "trl", keys, "model_name_or_path")
    take_task(draft, keys, request)
    huggingface.take_model_config(draft, keys)
    huggingface.take_training_arguments(draft, keys, request, huggingface_keys.TRL_ARGUMENTS)
    if draft.fields.get("task", "sft") in LANGUAGE:
        huggingface.take_sft_config(draft, keys)
    else:
        huggingface_tasks.take_task_config(draft, keys)
    draft.take("data.held_back", keys, "test_split_size")
    huggingface.take_allocator(draft, keys, "env")
    take_launcher(draft, keys, request)


def take_task(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """Where a key says it is no SFT, a folder on the way to the file may say which of preference tuning's it is."""
    if request.command in COMMANDS:
        put_task(draft, keys, COMMANDS[request.command], "model_name_or_path")
        return
    task, name = task_of_keys(keys)
    folder = next((part for part in reversed(request.folder.parts) if part in COMMANDS and part != "sft"), None)
    put_task(draft, keys, COMMANDS[folder] if task == "dpo" and folder is not None else task, name)


def task_of_keys(keys: Keys) -> tuple[str, str]:
    """And the key that says so."""
    for task, names in TASK_KEYS.items():
        found = next((name for name in names if not any(keys.document.get(name) is no for no in (None, False))), None)
        if found:
            return task, found
    loss = keys.document.get("loss_type")
    kinds = loss if isinstance(loss, list) else [loss]
    if any(kind in LOSSES for kind in kinds if isinstance(kind, str)):
        return "dpo", "loss_type"
    if huggingface_tasks.task_of_loss("cpo", loss) == "simpo":
        return "simpo", "loss_type"
    return "sft", "model_name_or_path"


def put_task(draft: Draft, keys: Keys, task: str, *names: str) -> None:
    """One of the tasks a job may name; others are refused by name."""
    task = huggingface_tasks.task_of_loss(task, keys.document.get("loss_type"))
    if task in TASKS:
        if task == "sft":
            draft.assume("task", "sft")
        else:
            draft.put("task", task, keys, *names)
    else:
        draft.refuse(task, "nothing of this kind of training is modelled")


def take_launcher(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """`--accelerate_config` names one of TRL's own files or another (trl/cli/main.py); else what launches it does."""
    name = keys.get("accelerate_config")
    if request.launch.accelerate is not None:
        read_accelerate(draft, request.launch.accelerate, request)
    elif isinstance(name, str) and name in ACCELERATE_CONFIGS:
        own = ACCELERATE_CONFIGS[name]
        processes = {} if name == "single_gpu" else {"num_processes": PROCESSES}
        file = f"trl/accelerate_configs/{name}.yaml"
        read_accelerate(draft, Document(file, {**own, **processes, "mixed_precision": "bf16"}, {}), request)
    elif (document := request.open(name)) is not None:
        read_accelerate(draft, document, request)
    elif name:
        draft.not_modelled(keys, "accelerate_config", "the file it names is not here")


def invocation(words: Sequence[str]) -> Invocation | None:
    """`trl sft --config x.yaml --lora_r 8`, or a script that reads the same: `scripts/sft.py --config x.yaml`."""
    words = [word for word in words if isinstance(word, str)]
    while words and PurePath(words[0]).name.startswith("python"):
        words = words[1:]
    if len(words) > 1 and words[0] == "-m":
        words = [words[1].rpartition(".")[2] + ".py", *words[2:]]
    if words and words[0].startswith(MODULES):  # a launcher with -m of its own leaves the module's name
        words = [words[0].removeprefix(MODULES) + ".py", *words[1:]]
    if not words:
        return None
    program = PurePath(words[0])
    if program.name == "trl" and len(words) > 1 and words[1] in COMMANDS:
        command, rest = words[1], words[2:]
    elif program.suffix == ".py" and (found := SCRIPT.fullmatch(program.stem.lower())):
        command, rest = found[1], words[1:]
    else:
        return None
    flags = flags_of([word if isinstance(word, Word) else Word(word) for word in rest])
    values = {
        name.removeprefix("no_"): False if name.startswith("no_") and value is True else value
        for name, value in flags.values.items()
        if name != "config"
    }
    config = flags.values.get("config")
    return Invocation(config if isinstance(config, str) else None, values, flags.lines, command)
