"""What Axolotl trains for: `rl` with the blocks `trl` and `vllm`, reward models, classifiers, images.

Keys and defaults: axolotl/utils/schemas/trl.py, `TRLConfig`; axolotl/utils/schemas/vllm.py, `VllmConfig`. What becomes
of them: axolotl/core/builders/rl.py, `HFRLTrainerBuilder`; axolotl/core/trainers/grpo/__init__.py, `GRPOStrategy`; the
rest is TRL's own (huggingface_tasks.py). Images: axolotl/utils/config/__init__.py, `normalize_config`;
axolotl/utils/freeze.py, `freeze_mm_modules`; axolotl/utils/schemas/multimodal.py, `MultiModalConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from tunecast.job.names import HEADS, PREFERENCES
from tunecast.job.recipes import huggingface, huggingface_keys, huggingface_tasks
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.axolotl_keys import is_on
from tunecast.job.recipes.huggingface_keys import Defaults
from tunecast.job.recipes.images import assume_images
from tunecast.job.recipes.values import whole, word

_VLLM = "axolotl/utils/schemas/vllm.py: VllmConfig"
TASKS = {"dpo": "dpo", "ipo": "dpo", "orpo": "orpo", "kto": "kto", "simpo": "simpo", "grpo": "grpo", "gdpo": "grpo"}
"""Of `rl`. GDPO sums rewards otherwise than GRPO does."""
VLLM: Defaults = {"rl.vllm.memory_fraction": (0.9, f"{_VLLM}.gpu_memory_utilization")}
DEFAULTS: Defaults = {f"grpo {field}": each for field, each in VLLM.items()}
WORDS: Mapping[str, Any] = {
    "preference.beta": "rl_beta",
    "preference.reference": huggingface_keys.WORDS["preference.reference"],
    "rl.generations": "trl.num_generations",
    "rl.completion_length": "trl.max_completion_length",
    "rl.iterations": "trl.num_iterations",
    "rl.engine": lambda engine: {"trl.use_vllm": engine == "vllm"},
    "rl.vllm.place": "trl.vllm_mode",
    "rl.vllm.memory_fraction": "vllm.gpu_memory_utilization",
    "rl.vllm.tensor": "vllm.tensor_parallel_size",
    "rl.vllm.sleep": "trl.vllm_enable_sleep_mode",
    "vision.pixels": lambda pixels: {"image_size": isqrt(pixels)} if isqrt(pixels) ** 2 == pixels else None,
    "vision.trained": lambda parts: {"freeze_mm_modules": True} if list(parts) == ["language"] else None,
}
LISA = (
    "so many layers are trained at a time, and the optimizer keeps states of all that were; taken is that all are "
    "trained, whose gradients need more memory and time"
)
"""axolotl/utils/callbacks/lisa.py: embedding, norm and head are trained throughout; states are never let go."""
REPORTED = {
    "trl.async_prefetch": "it generates while it trains",
    "trl.use_data_producer": "it generates while it trains",
    "trl.replay_buffer_size": "completions are kept and trained on again",
}


def take_task(draft: Draft, keys: Keys) -> None:
    kind, model_type = word(keys.get("rl")), word(keys.document.get("model_type"))
    if kind in TASKS:
        draft.put("task", TASKS[kind], keys, "rl")
    elif kind:
        draft.refuse(kind, "a task that is not modelled")
    elif is_on(keys.get("reward_model")):
        draft.put("task", "reward", keys, "reward_model")
    elif is_on(keys.get("process_reward_model")):
        draft.put("task", "prm", keys, "process_reward_model")
    elif "tokenclassification" in model_type:
        draft.refuse("classification of tokens", "each token gets a class")
    elif "classification" in model_type or whole(keys.get("num_labels")):
        draft.put("task", "classify", keys, "num_labels", "model_type")
    elif is_on(keys.document.get("pretraining_dataset")):
        draft.put("task", "pretrain", keys, "pretraining_dataset")
    else:
        draft.assume("task", "sft")
    if is_on(keys.get("qat")):
        draft.refuse("QAT", "quantisation is imitated while it trains")
    if is_on(keys.get("processor_type")) or is_on(keys.get("is_multimodal")):
        take_images(draft, keys)
    if is_on(keys.document.get("lisa_n_layers")) and is_on(keys.document.get("lisa_step_interval")):
        draft.not_modelled(keys, "lisa_n_layers", LISA)


def take_images(draft: Draft, keys: Keys) -> None:
    """Adapters are put where `lora_target_modules` says; whole training leaves towers out where it is told to.
    `image_size` is the side of a square, or both."""
    assume_images(draft)
    size = keys.get("image_size")
    sides = [whole(side) for side in size] if isinstance(size, list) else [whole(size), whole(size)]
    if len(sides) == 2 and sides[0] and sides[1]:
        draft.put("vision.pixels", sides[0] * sides[1], keys, "image_size")
    if is_on(keys.get("freeze_mm_modules")):
        draft.put("vision.trained", ["language"], keys, "freeze_mm_modules")
    else:
        within = keys.document.get("lora_target_modules")
        if isinstance(within, str) and "language_model" in within:
            draft.put("vision.trained", ["language"], keys, "lora_target_modules")
    keys.ignore("image_resize_algorithm")


def take_task_keys(draft: Draft, keys: Keys) -> None:
    """Where rows are cut is known by now."""
    task = draft.fields.get("task")
    if task in PREFERENCES:
        draft.take("preference.beta", keys, "trl.beta", "rl_beta", "dpo_beta", "orpo_alpha")
        if is_on(keys.get("precompute_ref_log_probs")):
            draft.put("preference.reference", "precomputed", keys, "precompute_ref_log_probs")
        elif is_on(keys.get("rl_adapter_ref_model")):
            draft.put("preference.reference", "model", keys, "rl_adapter_ref_model")
        defaults = huggingface_tasks.TASK_DEFAULTS[str(task)]
        if task == "simpo":
            draft.take("preference.sft_weight", keys, "cpo_alpha")
        for field in ("preference.beta", "preference.sft_weight"):
            huggingface.assume(draft, field, defaults)
        if is_on(keys.get("dpo_use_liger_kernel")):
            draft.put("kernels", ["liger"], keys, "dpo_use_liger_kernel")
        if is_on(keys.get("dpo_padding_free")):
            draft.not_modelled(keys, "dpo_padding_free", "the rows of a batch are one, without padding")
    elif task in HEADS:
        draft.take("head.labels", keys, "num_labels")
    elif task == "grpo":
        take_rollouts(draft, keys)


def take_rollouts(draft: Draft, keys: Keys) -> None:
    keys.without("trl.*", "vllm.*")
    for field, name in (
        ("generations", "num_generations"), ("completion_length", "max_completion_length"), ("beta", "beta"),
        ("iterations", "num_iterations"),
    ):  # fmt: skip
        draft.take(f"rl.{field}", keys, f"trl.{name}")
    if keys.get("rl_beta") is not None:
        draft.offer("rl.beta", keys.get("rl_beta"), keys, "rl_beta")
    if keys.get("trl.generation_batch_size") is not None:
        why = "micro-batches that one generation serves follow the cards"
        draft.not_modelled(keys, "trl.generation_batch_size", why)
    if is_on(keys.get("trl.use_vllm")):
        draft.put("rl.engine", "vllm", keys, "trl.use_vllm")
        draft.take("rl.vllm.place", keys, "trl.vllm_mode")
        draft.take("rl.vllm.memory_fraction", keys, "vllm.gpu_memory_utilization")
        draft.take("rl.vllm.tensor", keys, "vllm.tensor_parallel_size")
        huggingface.assume_all(draft, VLLM)
        if draft.fields.get("rl.vllm.place") == "server":
            copies = whole(keys.get("vllm.data_parallel_size")) or 1
            draft.assume("rl.vllm.cards", copies * (whole(draft.fields.get("rl.vllm.tensor")) or 1))
        else:
            draft.take("rl.vllm.sleep", keys, "trl.vllm_enable_sleep_mode")
    if is_on(keys.get("trl.use_liger_loss")):
        draft.put("kernels", ["liger"], keys, "trl.use_liger_loss")
    for name, why in REPORTED.items():
        if is_on(keys.get(name)):
            draft.not_modelled(keys, name, why)
    defaults = huggingface_tasks.TASK_DEFAULTS["grpo"]
    leave = () if huggingface_tasks.is_vllm(draft) else tuple(name for name in defaults if ".vllm." in name)
    huggingface.assume_all(draft, defaults, leave=leave)
    huggingface_tasks.take_prompts(draft, keys, "sequence_len")
