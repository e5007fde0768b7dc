"""Keys of TRL's trainers beyond SFT: preferences, heads, rollouts, teachers.

Defaults are those of the releases in job/releases.py: trl/trainer/dpo_config.py, `DPOConfig`;
trl/trainer/kto_config.py, `KTOConfig`; trl/trainer/reward_config.py, `RewardConfig`; trl/trainer/grpo_config.py,
`GRPOConfig`; trl/trainer/rloo_config.py, `RLOOConfig`; trl/trainer/distillation_config.py, `DistillationConfig`; of
trl/experimental orpo/orpo_config.py, cpo/cpo_config.py, gkd/gkd_config.py. PPO and process rewards left TRL after 1.10:
what ppo/ppo_config.py and prm/prm_config.py had there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.names import HEADS, PREFERENCES, ROLLOUTS
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.huggingface import assume_all, is_on, take_cut
from tunecast.job.recipes.huggingface_keys import Defaults
from tunecast.job.recipes.values import whole, word

PROMPT_TOKENS = 512
"""Of a rollout whose prompts nobody knows: what TRL cut them to until 0.27 (`GRPOConfig.max_prompt_length`)."""
UNKNOWN_PROMPTS = f"tunecast: how long prompts are is the data's; TRL cut them to {PROMPT_TOKENS} while it did"

_DPO, _KTO, _REWARD, _GRPO, _RLOO, _DISTILL = (
    f"trl/trainer/{name}_config.py: {title}Config"
    for name, title in (
        ("dpo", "DPO"), ("kto", "KTO"), ("reward", "Reward"), ("grpo", "GRPO"), ("rloo", "RLOO"),
        ("distillation", "Distillation"),
    )
)  # fmt: skip
_ORPO, _CPO, _GKD, _PPO, _PRM = (
    f"trl/experimental/{name}/{name}_config.py: {name.upper()}Config" for name in ("orpo", "cpo", "gkd", "ppo", "prm")
)
_SERVE = "trl/scripts/vllm_serve.py: ScriptArguments"


def _of_preference(config: str) -> Defaults:
    return {"seq_len": (1024, f"{config}.max_length"), "preference.beta": (0.1, f"{config}.beta")}


def _of_rollouts(config: str) -> Defaults:
    return {
        "rl.completion_length": (512, f"{config}.max_completion_length"),
        "rl.iterations": (1, f"{config}.num_iterations"),
        "rl.engine": ("transformers", f"{config}.use_vllm"),
        "rl.vllm.place": ("colocate", f"{config}.vllm_mode"),
        "rl.vllm.memory_fraction": (0.3, f"{config}.vllm_gpu_memory_utilization"),
        "rl.vllm.tensor": (1, f"{config}.vllm_tensor_parallel_size"),
        "rl.vllm.sleep": (False, f"{config}.vllm_enable_sleep_mode"),
    }


TASK_DEFAULTS: Mapping[str, Defaults] = {
    "dpo": _of_preference(_DPO),
    "kto": _of_preference(_KTO),
    "orpo": _of_preference(_ORPO),
    "cpo": {**_of_preference(_CPO), "preference.sft_weight": (1.0, f"{_CPO}.cpo_alpha")},
    "simpo": {**_of_preference(_CPO), "preference.sft_weight": (1.0, f"{_CPO}.cpo_alpha")},
    "reward": {"seq_len": (1024, f"{_REWARD}.max_length")},
    "prm": {"seq_len": (1024, f"{_PRM}.max_length")},
    "grpo": {
        **_of_rollouts(_GRPO),
        "rl.generations": (8, f"{_GRPO}.num_generations"),
        "rl.beta": (0.0, f"{_GRPO}.beta"),
    },
    "rloo": {
        **_of_rollouts(_RLOO),
        "rl.generations": (2, f"{_RLOO}.num_generations"),
        "rl.beta": (0.05, f"{_RLOO}.beta"),
    },
    "ppo": {
        "rl.completion_length": (53, f"{_PPO}.response_length"),
        "rl.iterations": (4, f"{_PPO}.num_ppo_epochs"),
        "rl.beta": (0.05, f"{_PPO}.kl_coef"),
    },
    "distill": {"completion_length": (512, f"{_DISTILL}.max_completion_length")},
}
"""By task: what its config has beyond `_BaseConfig`."""
GKD: Defaults = {
    "seq_len": (1024, "trl/trainer/sft_config.py: SFTConfig.max_length"),
    "distill.on_policy": (0.5, f"{_GKD}.lmbda"),
}
"""Of distillation where a config says how many batches the student generates."""
SERVED: Defaults = {"rl.vllm.memory_fraction": (0.9, f"{_SERVE}.gpu_memory_utilization")}
"""Of a server, which is started by itself."""
DEFAULTS: Defaults = {
    f"{task} {field}": each
    for task, fields in {**TASK_DEFAULTS, "gkd": GKD, "server": SERVED}.items()
    for field, each in fields.items()
}

WITHOUT_EFFECT = (
    *("disable_dropout", "label_smoothing", "label_pad_token_id", "padding_value", "truncation_mode", "loss_weights"),
    *("f_divergence_type", "f_alpha_divergence_coef", "discopop_tau", "use_weighting", "ld_alpha", "rpo_alpha"),
    *("sync_ref_model", "ref_model_*", "desirable_weight", "undesirable_weight", "simpo_gamma", "cpo_alpha", "alpha"),
    *("is_encoder_decoder", "generate_during_eval", "model_adapter_name", "ref_adapter_name", "reference_free"),
    *("center_rewards_coefficient", "step_separator", "train_on_last_step_only", "precompute_ref_batch_size"),
    *("temperature", "top_p", "top_k", "min_p", "repetition_*", "reward_weights", "reward_funcs", "epsilon*", "delta"),
    *("sapo_*", "vespo_*", "importance_sampling_level", "multi_objective_aggregation", "scale_rewards", "entropy_*"),
    *("mask_truncated_completions", "top_entropy_quantile", "use_adaptive_entropy", "vllm_server_*", "stop_token*"),
    *("vllm_group_port", "vllm_guided_*", "vllm_structured_*", "vllm_importance_sampling_*", "vllm_model_impl"),
    *("vllm_max_model_len*", "vllm_device", "vllm_dtype", "off_policy_mask_threshold", "use_bias_correction_kl"),
    *("log_completions*", "log_multimodal", "num_completions_to_print", "log_unique_prompts", "generation_kwargs"),
    *("chat_template_kwargs", "shuffle_dataset", "num_generations_eval", "cosine_*", "max_tool_calling_iterations"),
    *("normalize_advantages", "reward_clip_range", "missing_eos_penalty", "whiten_rewards", "cliprange*", "vf_coef"),
    *("gamma", "lam", "total_episodes", "num_sample_generations", "kl_estimator", "sft_model_path", "exp_name"),
    *("local_rollout_forward_batch_size", "teacher_model_revision", "teacher_model_init_kwargs*", "seq_kd"),
    *("normalize_rewards", "wandb_log_unique_prompts", "max_completions", "parallel_code_exec_per_proc"),
    *("code_*", "ioi_*", "e2b_*", "piston_*", "judge", "use_logits_to_keep", "loss_type"),
)
"""Of these configs. What is generated from a distribution, how rewards are weighed and which loss of a kind it is move
neither memory nor time."""
CHANGES_GENERATION: Mapping[str, str] = {
    "cache_implementation": "another cache of keys and values while it generates",
    "use_transformers_paged": "a paged cache while it generates",
    "use_transformers_continuous_batching": "a paged cache while it generates",
    "cast_lm_head_to_fp32": "the head and its logits are in float32",
}


def take_task_config(draft: Draft, keys: Keys, defaults: Mapping[str, Defaults] = TASK_DEFAULTS) -> None:
    """What the config of the draft's task says beyond `TrainingArguments`."""
    task = str(draft.fields.get("task"))
    of_task = defaults.get(task, {})
    keys.without(*WITHOUT_EFFECT)
    take_details(draft, keys)
    if task in PREFERENCES:
        take_preference(draft, keys, task)
    if task in HEADS:
        draft.take("head.labels", keys, "num_labels")
    if task in (*PREFERENCES, *HEADS):
        take_cut(draft, keys)
        keys.ignore("max_prompt_length", "max_completion_length", "max_target_length")
    if task in ("grpo", "rloo"):
        take_rollouts(draft, keys)
    elif task == "ppo":
        take_ppo(draft, keys)
    elif task == "distill":
        of_task = take_distillation(draft, keys, of_task)
    leave = () if is_vllm(draft) else tuple(field for field in of_task if field.startswith("rl.vllm."))
    assume_all(draft, of_task, leave=leave)
    if task in ROLLOUTS:
        take_prompts(draft, keys)


def take_details(draft: Draft, keys: Keys) -> None:
    """What SFTConfig and these have in common."""
    if (multiple := keys.get("pad_to_multiple_of")) not in (None, "auto"):
        draft.put("data.pad_to_multiple_of", multiple, keys, "pad_to_multiple_of")
    draft.take("offload_activations", keys, "activation_offloading")
    draft.take("data.num_proc", keys, "dataset_num_proc")
    if is_on(keys.get("padding_free")):
        draft.not_modelled(keys, "padding_free", "the rows of a batch are one, without padding")
    keys.ignore("use_liger_loss", "router_aux_loss_coef", "packing")
    draft.assume("data.packing", False)
    for name, why in CHANGES_GENERATION.items():
        if is_on(keys.get(name)):
            draft.not_modelled(keys, name, why)


def take_preference(draft: Draft, keys: Keys, task: str) -> None:
    draft.take("preference.beta", keys, "beta")
    if task in ("cpo", "simpo"):
        draft.take("preference.sft_weight", keys, "cpo_alpha")
    if is_on(keys.get("precompute_ref_log_probs")):
        draft.put("preference.reference", "precomputed", keys, "precompute_ref_log_probs")
    elif is_on(keys.get("ref_model", "ref_model_name_or_path", "model_ref")):
        draft.put("preference.reference", "model", keys, "ref_model", "ref_model_name_or_path", "model_ref")
    if task == "kto" and word(keys.get("loss_type")) == "apo_zero_unpaired":
        draft.not_modelled(keys, "loss_type", "a loss without the mismatched rows of KTO")


def take_rollouts(draft: Draft, keys: Keys) -> None:
    draft.take("rl.generations", keys, "num_generations", "rloo_k")
    draft.take("rl.completion_length", keys, "max_completion_length", "response_length")
    draft.take("rl.iterations", keys, "num_iterations")
    draft.take("rl.beta", keys, "beta", "rloo_beta")
    take_reward_model(draft, keys, "reward_model_name_or_path", "reward_model_path", "reward_model")
    take_steps_per_generation(draft, keys)
    take_vllm(draft, keys)


def take_reward_model(draft: Draft, keys: Keys, *names: str) -> None:
    draft.take("rl.reward_model", keys, *names, read=lambda name: name[0] if isinstance(name, list) and name else name)


def take_steps_per_generation(draft: Draft, keys: Keys) -> None:
    """`GRPOConfig.__post_init__`: `generation_batch_size` counts completions of all cards, and follows from the other
    where that is given."""
    completions, rows = whole(keys.get("generation_batch_size")), whole(draft.fields.get("micro_batch"))
    if draft.take("rl.steps_per_generation", keys, "steps_per_generation"):
        return
    cards = whole(draft.fields.get("hardware.gpus"))
    if completions and rows and cards and completions % (rows * cards) == 0:
        draft.put("rl.steps_per_generation", completions // (rows * cards), keys, "generation_batch_size")
    elif completions:
        draft.not_modelled(keys, "generation_batch_size", "micro-batches that one generation serves follow the cards")


def take_vllm(draft: Draft, keys: Keys) -> None:
    """On the training cards, or on a server's, whose share of its card is its own."""
    used = keys.get("use_vllm")
    if used is not None and "rl.engine" not in draft.places:
        draft.put("rl.engine", "vllm" if is_on(used) else "transformers", keys, "use_vllm")
    names = ("vllm_mode", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode")
    if not is_vllm(draft):
        keys.ignore(*names)
        return
    draft.take("rl.vllm.place", keys, "vllm_mode")
    if draft.fields.get("rl.vllm.place") == "server":
        keys.ignore(*names[1:])
        assume_all(draft, SERVED)
        draft.assume("rl.vllm.cards", 1, "tunecast: how many cards the server has, it says itself")
        return
    draft.take("rl.vllm.memory_fraction", keys, "vllm_gpu_memory_utilization")
    draft.take("rl.vllm.tensor", keys, "vllm_tensor_parallel_size")
    draft.take("rl.vllm.sleep", keys, "vllm_enable_sleep_mode")


def is_vllm(draft: Draft) -> bool:
    return draft.fields.get("rl.engine") == "vllm"


def take_ppo(draft: Draft, keys: Keys) -> None:
    """One completion of each prompt. A batch is made of as many micro-batches as it is trained in
    (trl/experimental/ppo/ppo_trainer.py, `PPOTrainer.__init__`)."""
    draft.take("rl.completion_length", keys, "response_length", "max_new_tokens", "max_completion_length")
    draft.take("rl.iterations", keys, "num_ppo_epochs", "ppo_epochs")
    draft.take("rl.beta", keys, "kl_coef", "init_kl_coef")
    take_reward_model(draft, keys, "reward_model_path", "reward_model")
    draft.assume("rl.generations", 1)
    pieces, steps = whole(keys.get("num_mini_batches")), whole(draft.fields.get("grad_accum"))
    if pieces and pieces > 1 and steps:
        draft.put("rl.steps_per_generation", pieces * steps, keys, "num_mini_batches")


def take_distillation(draft: Draft, keys: Keys, defaults: Defaults) -> Defaults:
    """What is left to assume. Where no teacher is named, it is the model as it was (trl/experimental/gkd/gkd_config.py;
    trl/trainer/distillation_config.py). GKDConfig cuts rows as SFTConfig does; DistillationConfig's student writes all
    completions."""
    take_teacher(draft, keys, "teacher_model_name_or_path", "teacher_model")
    keys.get("beta")
    draft.take("distill.on_policy", keys, "lmbda")
    if any(map(keys.has, ("lmbda", "seq_kd", "max_new_tokens"))):
        take_cut(draft, keys)
        keys.ignore("max_new_tokens")
        return GKD
    draft.assume("distill.on_policy", 1.0)
    keys.ignore("max_length")
    written = whole(keys.get("max_completion_length", default=defaults["completion_length"][0]))
    prompt = whole(keys.get("max_prompt_length", default=PROMPT_TOKENS))
    if written and prompt:
        draft.assume("seq_len", prompt + written, UNKNOWN_PROMPTS)
    return {}


def take_teacher(draft: Draft, keys: Keys, *names: str) -> None:
    draft.take("distill.teacher", keys, *names)
    if (model := draft.fields.get("model")) is not None:
        draft.assume("distill.teacher", model)
    if is_on(keys.get("use_vllm")) and word(keys.get("vllm_mode")) != "server":
        draft.not_modelled(keys, "use_vllm", "the share of the card that vLLM takes for the student's completions")
    keys.ignore("vllm_mode", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode")


def take_prompts(draft: Draft, keys: Keys, *limits: str) -> None:
    """A row is a prompt and what was generated. `limits`: keys that bound the two together."""
    said = draft.take("rl.prompt_length", keys, "max_prompt_length") or "rl.prompt_length" in draft.fields
    completion = whole(draft.fields.get("rl.completion_length"))
    both = next((most for name in limits if (most := whole(keys.get(name)))), None)
    if not said and both and completion and both > completion:
        draft.put("rl.prompt_length", both - completion, keys, *limits)
    draft.assume("rl.prompt_length", PROMPT_TOKENS, UNKNOWN_PROMPTS)
    prompt = whole(draft.fields["rl.prompt_length"])
    if prompt and completion:
        draft.drop("seq_len")
        draft.assume("seq_len", prompt + completion, "tunecast: a prompt and what is generated")


def task_of_loss(task: str, loss: object) -> str:
    """SimPO is a loss of CPOTrainer's (trl/experimental/cpo/cpo_trainer.py, `CPOTrainer.cpo_loss`)."""
    kinds: Sequence[Any] = loss if isinstance(loss, (list, tuple)) else [loss]
    return "simpo" if task == "cpo" and any(kind in ("simpo", "alphapo") for kind in kinds) else task
