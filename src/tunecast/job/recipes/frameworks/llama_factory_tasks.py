"""What LLaMA-Factory trains for: its stages beyond SFT, images and videos.

Keys      llamafactory/hparams/finetuning_args.py, `RLHFArguments`; llamafactory/hparams/model_args.py,
          `ProcessorArguments`; llamafactory/hparams/generating_args.py, `GeneratingArguments`
Models    llamafactory/train/trainer_utils.py, `create_ref_model`, `create_reward_model`: adapters are switched off for
          the reference unless it is named
Images    llamafactory/data/mm_plugin.py, `BasePlugin._preprocess_image`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.names import PREFERENCES
from tunecast.job.recipes import huggingface
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.huggingface_keys import Defaults
from tunecast.job.recipes.huggingface_tasks import take_prompts
from tunecast.job.recipes.images import assume_images, frozen_words, take_frozen_parts
from tunecast.job.recipes.values import whole, word

_RLHF = "llamafactory/hparams/finetuning_args.py: RLHFArguments"
_OWN = "llamafactory/hparams/finetuning_args.py: FinetuningArguments"
_PROCESSOR = "llamafactory/hparams/model_args.py: ProcessorArguments"
_GENERATING = "llamafactory/hparams/generating_args.py: GeneratingArguments"
TASKS = {"pt": "pretrain", "sft": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo"}
LOSSES = {"orpo": "orpo", "simpo": "simpo"}
"""Of `pref_loss`: tasks of their own."""
PREFERENCE: Defaults = {"preference.beta": (0.1, f"{_RLHF}.pref_beta")}
PPO: Defaults = {
    "rl.completion_length": (1024, f"{_GENERATING}.max_new_tokens"),
    "rl.iterations": (4, f"{_RLHF}.ppo_epochs"),
}
FROZEN: Mapping[str, tuple[str, bool]] = {
    "tower": ("freeze_vision_tower", True),
    "projector": ("freeze_multi_modal_projector", True),
    "language": ("freeze_language_model", False),
}
IMAGES: Defaults = {
    "image_max_pixels": (768 * 768, f"{_PROCESSOR}.image_max_pixels"),
    "video_max_pixels": (256 * 256, f"{_PROCESSOR}.video_max_pixels"),
    "video_maxlen": (128, f"{_PROCESSOR}.video_maxlen"),
}
DEFAULTS: Defaults = {
    **PREFERENCE,
    **PPO,
    **{name: (default, f"{_OWN}.{name}") for name, default in FROZEN.values()},
    **IMAGES,
}
WORDS: Mapping[str, Any] = {
    "preference.beta": "pref_beta",
    "preference.reference": lambda kind: None,
    "rl.completion_length": "max_new_tokens",
    "rl.iterations": "ppo_epochs",
    "vision.pixels": "image_max_pixels",
    "vision.trained": lambda parts: frozen_words(FROZEN, parts),
}
SEEN = ("image_max_pixels", "image_do_pan_and_scan", *(name for name, _ in FROZEN.values()))
FILMED = ("video_max_pixels", "video_fps", "video_maxlen")
HEARD = ("audio_sampling_rate", "use_audio_in_video")


def take_stage(draft: Draft, keys: Keys) -> None:
    stage = word(keys.get("stage")) or "sft"
    loss = word(keys.get("pref_loss"))
    if keys.get("stage") is None:
        draft.assume("task", "sft")
    else:
        task = LOSSES.get(loss, "dpo") if stage == "dpo" else TASKS.get(stage, keys.get("stage"))
        draft.put("task", task, keys, *(("pref_loss", "stage") if loss in LOSSES else ("stage",)))
    take_images(draft, keys)


def take_stage_keys(draft: Draft, keys: Keys) -> None:
    """Where rows are cut is known by now."""
    task = draft.fields.get("task")
    if task in PREFERENCES:
        draft.take("preference.beta", keys, "pref_beta", "dpo_beta")
        huggingface.assume_all(draft, PREFERENCE)
        if task == "simpo":
            draft.take("preference.sft_weight", keys, "pref_ftx")
        if is_on(keys.get("ref_model")):
            draft.put("preference.reference", "model", keys, "ref_model")
        if keys.get("ref_model_quantization_bit") is not None:
            draft.not_modelled(keys, "ref_model_quantization_bit", "the reference's weights are quantised")
    elif task == "ppo":
        take_ppo(draft, keys)
    keys.ignore("ref_model", "ref_model_adapters", "reward_model", "reward_model_adapters", "reward_model_type")


def take_ppo(draft: Draft, keys: Keys) -> None:
    draft.take("rl.completion_length", keys, "max_new_tokens")
    draft.take("rl.iterations", keys, "ppo_epochs")
    huggingface.assume_all(draft, PPO)
    draft.assume("rl.generations", 1)
    steps, buffered = whole(draft.fields.get("grad_accum")), whole(keys.get("ppo_buffer_size"))
    if steps and buffered and buffered > 1:
        draft.put("rl.steps_per_generation", steps * buffered, keys, "ppo_buffer_size")
    if word(keys.get("reward_model_type")) == "full":
        draft.take("rl.reward_model", keys, "reward_model")
    draft.not_modelled(
        keys, "stage", "its PPO has the value as a head of the policy; taken is TRL's, a model of its own"
    )
    if keys.get("cutoff_len") is not None:  # llamafactory/data/processor/unsupervised.py
        draft.put("rl.prompt_length", keys.get("cutoff_len"), keys, "cutoff_len")
    take_prompts(draft, keys)


def take_images(draft: Draft, keys: Keys) -> None:
    """A key that only they need, or a data set's name, says that there are any; of LLaMA-Factory's own files
    `mllm_demo` and `mllm_video_demo` hold them."""
    names = f"{keys.document.get('dataset')}".lower()
    heard = next((name for name in HEARD if is_on(keys.get(name))), "audio" if "audio" in names else None)
    if heard is not None:
        draft.refuse("sound", f"{heard}: towers that hear are not modelled")
        return
    filmed = "video" in names or (any(map(keys.has, FILMED)) and "mllm" not in names)
    if not (filmed or "mllm" in names or any(map(keys.has, SEEN))):
        return
    if filmed and not any(map(keys.has, ("image_max_pixels", "image_do_pan_and_scan"))):
        pairs = {"vision.frames": "video_maxlen", "vision.pixels": "video_max_pixels"}
    else:
        assume_images(draft)
        pairs = {"vision.pixels": "image_max_pixels"}
    for field, name in pairs.items():
        draft.take(field, keys, name)
        draft.assume(field, IMAGES[name][0])
    keys.ignore(*FILMED, "image_max_pixels")
    take_frozen_parts(draft, keys, FROZEN)
    if is_on(keys.get("image_do_pan_and_scan")):
        draft.not_modelled(keys, "image_do_pan_and_scan", "parts of an image are seen beside the whole")
