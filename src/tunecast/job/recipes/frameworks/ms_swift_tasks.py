"""What ms-swift trains for: `swift rlhf`, heads of `task_type`, images and videos.

Keys      swift/arguments/rlhf_args.py, `RLHFArguments`; swift/rlhf_trainers/args_mixin.py,
          `RolloutTrainerArgumentsMixin`; of heads swift/arguments/base_args/model_args.py, `ModelArguments`
Images    sizes come as environment variables too (swift/model/models/qwen.py, `patch_qwen_vl_utils`); what is frozen:
          swift/arguments/tuner_args.py, `TunerArguments`
Heads     a generative reranker's head has one output, that of yes less that of no
          (swift/utils/torch_utils.py, `get_generative_reranker_logits`)
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.names import HEADS, PREFERENCES, ROLLOUTS
from tunecast.job.recipes import huggingface, huggingface_tasks
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.huggingface_keys import Defaults
from tunecast.job.recipes.images import assume_images, take_frozen_parts
from tunecast.job.recipes.recipe import Place
from tunecast.job.recipes.values import whole, word

_RLHF = "swift/arguments/rlhf_args.py"
_ROLLOUT = "swift/rlhf_trainers/args_mixin.py"
_TUNER = "swift/arguments/tuner_args.py: TunerArguments"
TASKS = {
    **{"dpo": "dpo", "orpo": "orpo", "kto": "kto", "cpo": "cpo", "simpo": "simpo", "rm": "reward", "grpo": "grpo"},
    **{"ppo": "ppo", "gkd": "distill"},
}
TASK_TYPES = {"seq_cls": "classify", "embedding": "embed", "reranker": "rerank", "generative_reranker": "rerank"}
ROLLOUT: Defaults = {
    "rl.generations": (8, f"{_RLHF}: GRPOArguments.num_generations"),
    "rl.completion_length": (512, f"{_RLHF}: RLHFArguments.max_completion_length"),
    "rl.iterations": (1, f"{_RLHF}: GRPOArguments.num_iterations"),
    "rl.engine": ("transformers", f"{_ROLLOUT}: RolloutTrainerArgumentsMixin.use_vllm"),
    "rl.vllm.memory_fraction": (0.9, f"{_ROLLOUT}: VllmArguments.vllm_gpu_memory_utilization"),
    "rl.vllm.tensor": (1, f"{_ROLLOUT}: VllmArguments.vllm_tensor_parallel_size"),
    "rl.vllm.sleep": (False, f"{_ROLLOUT}: RolloutTrainerArgumentsMixin.sleep_level"),
}
PPO: Defaults = {
    "rl.completion_length": ROLLOUT["rl.completion_length"],
    "rl.iterations": (4, f"{_RLHF}: PPOArguments.num_ppo_epochs"),
    "rl.beta": (0.05, f"{_RLHF}: PPOArguments.kl_coef"),
}
CPO: Defaults = {"preference.sft_weight": (1.0, f"{_RLHF}: RLHFArguments.cpo_alpha")}
GKD: Defaults = {"distill.on_policy": (0.5, f"{_RLHF}: RLHFArguments.lmbda")}
FROZEN: Mapping[str, tuple[str, bool]] = {
    "tower": ("freeze_vit", True),
    "projector": ("freeze_aligner", True),
    "language": ("freeze_llm", False),
}
_OF_TASKS = {"cpo": CPO, "grpo": ROLLOUT, "ppo": PPO, "gkd": GKD}
DEFAULTS: Defaults = {
    **{f"{task} {name}": each for task, of in _OF_TASKS.items() for name, each in of.items()},
    **{name: (default, f"{_TUNER}.{name}") for name, default in FROZEN.values()},
}  # fmt: skip
BETAS = {"simpo": 2.0, "distill": 0.5, "grpo": 0.04}
"""`RLHFArguments.__post_init__`; of others 0.1."""
WITHOUT_EFFECT = (
    *("vllm_*", "reward_*", "ref_*", "teacher_*", "beta", "epsilon*", "*_alpha", "log_completions", "overlong_filter"),
    *("gym_*", "use_gym_env", "loss_type", "importance_sampling_level", "advantage_*", "kl_in_reward", "scale_rewards"),
    *("desirable_weight", "undesirable_weight", "gkd_*", "problem_type", "seq_kd", "rlsd_*", "sdar_*", "fipo_*"),
    *(
        "real_tau",
        "cosine_*",
        "soft_*",
        "tau_*",
        "chord_mu_*",
        "chord_enable_phi_function",
        "log_entropy",
        "stop_words",
    ),
    *(
        "rollout_importance_sampling_*",
        "log_rollout_*",
        "off_policy_*",
        "completion_length_limit_scope",
        "loss_weights",
    ),
    *("move_model_batches", "move_model_*", "structured_outputs_*", "label_smoothing", "center_rewards_coefficient"),
    *("simpo_gamma", "num_generations_eval", "top_entropy_quantile", "delta", "wandb_log_unique_prompts", "min_p"),
    *("enable_flattened_weight_sync", "max_resample_times", "dynamic_sample", "sync_ref_model", "opsd_*"),
)
"""Of vLLM's memory, `memory_fraction` is all that it takes."""
REPORTED: Mapping[str, str] = {
    "offload_model": "weights wait in host memory while vLLM generates",
    "offload_optimizer": "the optimizer's states wait in host memory while vLLM generates",
    "offload_teacher_model": "the teacher waits in host memory while the student trains",
    "multi_turn_scheduler": "completions go on over several turns",
    "async_generate": "it generates while it trains",
    "vllm_enable_lora": "vLLM has the adapters beside its weights",
    "vllm_pipeline_parallel_size": "vLLM's layers are spread over cards",
    "chord_sft_dataset": "batches of SFT are mixed in",
    "reward_model_plugin": "how a model's rewards are read",
}
PIXELS = ("MAX_PIXELS", "IMAGE_MAX_TOKEN_NUM", "MAX_NUM")
VIDEOS = ("VIDEO_MAX_PIXELS", "VIDEO_MAX_TOKEN_NUM", "FPS_MAX_FRAMES", "NFRAMES", "FPS", "VIDEO_SEGMENTS")
SEEN = (
    *("a-okvqa", "captcha-images", "clevr_cogen_a_train", "coco", "coco_2014_caption", "garbage265"),
    *("geometry3k", "gpt4v-dataset", "gqa", "grit", "latex_ocr", "llava-data", "llava-instruct-150k"),
    *("llava-instruct-mix-vsft", "llava-pretrain", "lnqa", "m3it", "mantis-instruct", "mideficsdataset"),
    *("multimodal-mind2web", "ocr-vqa", "ok-vqa_train", "pixelprose", "refcoco", "refcocog", "rlaif-v-dataset"),
    *("sa1b-dense-caption", "sa1b-paired-captions-images", "scienceqa", "sharegpt-4o", "sharegpt4v", "textcaps"),
    "wds_voc2007_multilabel",
)
FILMED = ("egoschema", "llava-video-178k", "moviechat-1k-test", "videochatgpt")
HEARD = ("qwen3-1.7-tts-sft-furina", "speech_asr_aishell1_trainsets")
"""Names of data sets that swift/dataset/dataset/mllm.py registers, and swift/dataset/dataset/llm.py of speech."""
TOWERS = ("vit_lr", "aligner_lr", "vit_gradient_checkpointing", "max_pixels", "freeze_vit", "freeze_aligner")
PATCH = 32
"""Pixels of one token's side: Qwen3-VL's, whose limits are told in tokens (swift/model/models/qwen.py)."""
FRAMES = 768
"""The most that qwen_vl_utils takes of a video, `FPS_MAX_FRAMES`."""


def take_task(draft: Draft, keys: Keys, command: str, environment: Mapping[str, object]) -> None:
    kind, rlhf = word(keys.get("task_type")), word(keys.get("rlhf_type"))
    if command == "rlhf" or rlhf:
        if (rlhf or "dpo") in TASKS:
            task = huggingface_tasks.task_of_loss(TASKS[rlhf or "dpo"], keys.document.get("loss_type"))
            draft.put("task", task, keys, "rlhf_type")
        else:
            draft.refuse(rlhf, "this task is not modelled")
    elif kind in TASK_TYPES:
        draft.put("task", TASK_TYPES[kind], keys, "task_type")
    elif kind not in ("", "causal_lm"):
        draft.refuse(kind, "heads of this kind are not modelled")
    else:
        draft.assume("task", "pretrain" if command == "pt" else "sft")
    take_images(draft, keys, environment)


def take_images(draft: Draft, keys: Keys, environment: Mapping[str, object]) -> None:
    """A data set that holds some, a limit on their size, or a switch of the tower says that there are any."""
    shown, filmed, heard = (first_of(keys.document.get("dataset"), names) for names in (SEEN, FILMED, HEARD))
    if heard is not None or "ENABLE_AUDIO_OUTPUT" in environment:
        draft.refuse("sound", f"{heard or 'ENABLE_AUDIO_OUTPUT'}: towers that hear are not modelled")
        return
    said = next((name for name in (*PIXELS, *VIDEOS) if name in environment), None)
    switched = next((name for name in TOWERS if keys.has(name)), None)
    if not (shown or filmed or said or switched):
        return
    if filmed is not None or (said in VIDEOS and shown is None):
        frames = next((count for name in ("FPS_MAX_FRAMES", "NFRAMES") if (count := of(environment, name))), None)
        put_from(draft, keys, environment, "vision.frames", frames, "FPS_MAX_FRAMES", "NFRAMES")
        draft.assume("vision.frames", FRAMES, "qwen_vl_utils: the most frames of a video")
        put_from(draft, keys, environment, "vision.pixels", of(environment, "VIDEO_MAX_PIXELS"), "VIDEO_MAX_PIXELS")
        tokens = of(environment, "VIDEO_MAX_TOKEN_NUM")
        put_from(draft, keys, environment, "vision.pixels", tokens and tokens * PATCH**2, "VIDEO_MAX_TOKEN_NUM")
    else:
        assume_images(draft)
        tokens = of(environment, "IMAGE_MAX_TOKEN_NUM")
        put_from(draft, keys, environment, "vision.pixels", tokens and tokens * PATCH**2, "IMAGE_MAX_TOKEN_NUM")
        put_from(draft, keys, environment, "vision.pixels", of(environment, "MAX_PIXELS"), "MAX_PIXELS")
        put_from(draft, keys, environment, "vision.tiles", of(environment, "MAX_NUM"), "MAX_NUM")
        draft.take("vision.pixels", keys, "max_pixels")
    take_frozen_parts(draft, keys, FROZEN)
    keys.ignore("vit_lr", "aligner_lr")
    if keys.get("vit_gradient_checkpointing") is not None:
        draft.not_modelled(keys, "vit_gradient_checkpointing", "the tower is checkpointed as the language model is")


def of(environment: Mapping[str, object], name: str) -> int | None:
    return whole(environment.get(name))


def put_from(
    draft: Draft, keys: Keys, environment: Mapping[str, object], field: str, value: int | None, *names: str
) -> None:
    """A field that an environment variable says, where one does."""
    name = next((name for name in names if name in environment), None)
    if value and name is not None:
        draft.fields[field] = value
        draft.places[field] = Place(keys.document.file, getattr(environment[name], "line", 0), name)


def first_of(given: object, names: tuple[str, ...]) -> str | None:
    """The first of these data sets that has one of the names. `org/name:subset#1000`."""
    for name in given if isinstance(given, list) else [given]:
        plain = str(name).partition("#")[0].partition(":")[0]
        if plain.rpartition("/")[2].lower() in names or (names is SEEN and "-vl-" in plain.lower()):
            return plain[:80]
    return None


def take_task_keys(draft: Draft, keys: Keys) -> None:
    """What the task's arguments say, of `swift rlhf` and heads."""
    task = str(draft.fields.get("task"))
    keys.without(*WITHOUT_EFFECT)
    if task in PREFERENCES:
        huggingface_tasks.take_preference(draft, keys, task)
        draft.assume("preference.beta", BETAS.get(task, 0.1))
        if task in ("cpo", "simpo"):
            huggingface.assume_all(draft, CPO)
    elif task in HEADS:
        draft.take("head.labels", keys, "num_labels")
    elif task == "grpo":
        huggingface_tasks.take_rollouts(draft, keys)
        draft.take("distill.place", keys, "teacher_model_server", read=lambda _: "server")
        draft.take("distill.teacher", keys, "teacher_model")
        if "distill.place" in draft.fields and "model" in draft.fields:
            draft.assume("distill.teacher", draft.fields["model"], "tunecast: of a teacher elsewhere nothing is held")
        take_teacher_deepspeed(draft, keys)
        draft.assume("rl.beta", BETAS["grpo"])
        finish_rollouts(draft, keys, ROLLOUT)
    elif task == "ppo":
        huggingface_tasks.take_ppo(draft, keys)
        finish_rollouts(draft, keys, PPO)
    elif task == "distill":
        take_distillation(draft, keys)
    for name, why in REPORTED.items():
        if is_on(keys.get(name)) and keys.get(name) != 1:
            draft.not_modelled(keys, name, why)


def take_distillation(draft: Draft, keys: Keys) -> None:
    """Where no teacher is named it is the student itself (`RLHFArguments._check_teacher`)."""
    draft.take("distill.place", keys, "teacher_model_server", read=lambda _: "server")
    huggingface_tasks.take_teacher(draft, keys, "teacher_model")
    take_teacher_deepspeed(draft, keys)
    draft.take("distill.on_policy", keys, "lmbda")
    if draft.fields.get("stack") == "megatron" or draft.fields.get("distill.place") == "server":
        draft.take("distill.top_k", keys, "gkd_logits_topk")
    elif keys.get("gkd_logits_topk") is not None:
        draft.not_modelled(keys, "gkd_logits_topk", "all of the teacher's logits are taken to be compared")
    huggingface.assume_all(draft, GKD)
    if draft.fields.get("stack") == "megatron":
        draft.take("rl.completion_length", keys, "max_completion_length", "max_new_tokens")
        huggingface.assume(draft, "rl.completion_length", ROLLOUT)
    keys.ignore("sleep_level", "max_completion_length", "max_new_tokens")


def take_teacher_deepspeed(draft: Draft, keys: Keys) -> None:
    if keys.get("teacher_deepspeed") is not None:
        draft.not_modelled(keys, "teacher_deepspeed", "the teacher is taken to be held as the model that is trained is")


def finish_rollouts(draft: Draft, keys: Keys, defaults: Defaults) -> None:
    """`max_length` bounds prompts (swift/rl_core/resample.py); levels of sleep give memory back while it trains."""
    level = whole(keys.get("sleep_level"))
    vllm = huggingface_tasks.is_vllm(draft)
    if vllm and level is not None and draft.fields.get("rl.vllm.place") != "server":
        draft.put("rl.vllm.sleep", level > 0, keys, "sleep_level")
    keys.ignore("sleep_level")
    leave = () if vllm else tuple(field for field in defaults if field.startswith("rl.vllm."))
    huggingface.assume_all(draft, defaults, leave=leave)
    if draft.fields.get("task") in ROLLOUTS:
        if keys.get("max_length") is not None:
            draft.put("rl.prompt_length", keys.get("max_length"), keys, "max_length")
        huggingface_tasks.take_prompts(draft, keys)
        keys.ignore("truncation_strategy")
