"""Experts and latent attention: full, LoRA on attention or on everything, with recomputation and autocast or without.

No two sizes are alike. LoRA on everything reaches the stacked experts of Mixtral, Qwen3 and DeepSeek, where PEFT
refuses dropout; Llama 4's router it cannot adapt.
"""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 2048,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
FEW = {"intermediate_size": 384, "num_local_experts": 6, "num_experts_per_tok": 2}
QWEN = {"intermediate_size": 640, "moe_intermediate_size": 96, "num_experts": 12, "num_experts_per_tok": 3}
LATENT = {
    "num_key_value_heads": 8, "intermediate_size": 640, "moe_intermediate_size": 96, "n_routed_experts": 12,
    "num_experts_per_tok": 3, "first_k_dense_replace": 1, "kv_lora_rank": 128, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32, "v_head_dim": 32,
}  # fmt: skip
GROUPS = {"n_group": 4, "topk_group": 2, "q_lora_rank": 192}
INDEX = {"index_topk": 64, "index_head_dim": 40, "index_n_heads": 3}
GLM = {
    "intermediate_size": 640, "moe_intermediate_size": 96, "n_routed_experts": 12, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
}  # fmt: skip
LLAMA4 = {
    "head_dim": 32, "intermediate_size": 384, "intermediate_size_mlp": 640, "num_local_experts": 4,
    "num_experts_per_tok": 1, "no_rope_layers": [1, 1], "attention_chunk_size": 8192,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "mixtral": {"model_type": "mixtral", **FEW, "sliding_window": None},
    "qwen2_moe": {"model_type": "qwen2_moe", **QWEN, "shared_expert_intermediate_size": 320},
    "qwen3_moe": {"model_type": "qwen3_moe", **QWEN, "head_dim": 48, "norm_topk_prob": True},
    "olmoe": {"model_type": "olmoe", **QWEN, "intermediate_size": 96},
    "gpt_oss": {"model_type": "gpt_oss", **FEW, "head_dim": 32, "intermediate_size": 320, "sliding_window": 128},
    "granitemoe": {"model_type": "granitemoe", **FEW, "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    "deepseek_v2": {"model_type": "deepseek_v2", **LATENT, "q_lora_rank": None, "n_shared_experts": 2},
    "deepseek_v3": {"model_type": "deepseek_v3", **LATENT, **GROUPS, "n_shared_experts": 1},
    "llama4": {"model_type": "llama4_text", **LLAMA4},
    "glm4_moe": {**GLM, "model_type": "glm4_moe", "head_dim": 48, "use_qk_norm": True},
    "minimax_m2": {"model_type": "minimax_m2", **FEW, "head_dim": 48, "rotary_dim": 24},
    "mistral4": {**LATENT, **GROUPS, "model_type": "mistral4", "n_shared_experts": 1},
    "deepseek_v32": {**LATENT, **GROUPS, **INDEX, "model_type": "deepseek_v32", "n_shared_experts": 1},
    "glm4_moe_lite": {**LATENT, **GROUPS, "model_type": "glm4_moe_lite", "n_shared_experts": 1},
    "glm_moe_dsa": {
        **LATENT,
        **GROUPS,
        **INDEX,
        "model_type": "glm_moe_dsa",
        "n_shared_experts": 1,
        "indexer_types": ["full", "shared"],
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "qwen3_moe-dense-first": {**MODELS["qwen3_moe"], "mlp_only_layers": [0], "norm_topk_prob": False},
    "deepseek_v2-groups": {**MODELS["deepseek_v2"], **GROUPS, "topk_method": "group_limited_greedy"},
    "deepseek_v3-plain": {**MODELS["deepseek_v3"], "q_lora_rank": None, "rope_interleave": False},
    "glm4_moe-plain": {
        **MODELS["glm4_moe"], "use_qk_norm": False, "attention_bias": True, "n_group": 1, "topk_group": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    },
    "minimax_m2-part": {
        **MODELS["minimax_m2"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
    },
    "mistral4-plain": {
        **MODELS["mistral4"], "q_lora_rank": None, "rope_interleave": False, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": False,
    },
    "glm4_moe_lite-all": {**MODELS["glm4_moe_lite"], "mlp_layer_types": ["sparse", "sparse"], "q_lora_rank": None},
    "llama4-chunks": {
        **MODELS["llama4"], "no_rope_layers": [1, 0], "interleave_moe_layer_step": 2, "attention_chunk_size": 96,
        "num_experts_per_tok": 2,
    },
}  # fmt: skip
ATTENTION = {"rank": 8, "targets": "attention", "adapter_dtype": "float32", "dropout": 0.05}
EVERYTHING = {"rank": 8, "targets": "all-linear", "adapter_dtype": "float32", "dropout": 0.0}
CHECKPOINTED = {"gradient_checkpointing": True}
TRAININGS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": None},
    "full-checkpointed": {"method": "full", "weights_dtype": "float32", **CHECKPOINTED},
    "lora": {"method": "lora", "lora": ATTENTION, "autocast": None},
    "lora-checkpointed": {"method": "lora", "lora": ATTENTION, **CHECKPOINTED},
    "all": {"method": "lora", "lora": EVERYTHING},
    "all-checkpointed": {"method": "lora", "lora": EVERYTHING, "autocast": None, **CHECKPOINTED},
    "qlora": {"method": "qlora", "quantization": {"format": "nf4"}, "lora": ATTENTION, **CHECKPOINTED},
}
NOT_WITH_LLAMA4 = ("all", "all-checkpointed")
WITH_EAGER = (
    "deepseek_v3",
    "llama4",
    "glm4_moe",
    "minimax_m2",
    "mistral4",
    "glm4_moe_lite",
    "deepseek_v32",
    "glm_moe_dsa",
)
EAGER = {"method": "full", "attention": "eager"}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (f"{model}-{training}", values, SIZES | config)
    for model, config in MODELS.items()
    for training, values in TRAININGS.items()
    if not (model == "llama4" and training in NOT_WITH_LLAMA4)
]
CASES += [
    (f"{variant}-{training}", TRAININGS[training], SIZES | config)
    for variant, config in VARIANTS.items()
    for training in ("full", "lora-checkpointed")
]
CASES += [(f"{model}-eager", EAGER, SIZES | MODELS[model]) for model in WITH_EAGER]
CASES += [
    ("gpt_oss-crossing", {**TRAININGS["lora-checkpointed"], "lengths": [96, 256, 128]}, SIZES | MODELS["gpt_oss"])
]
