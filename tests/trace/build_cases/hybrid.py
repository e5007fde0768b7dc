"""Layers without attention between layers with it: full, LoRA and QLoRA, with recomputation and without.

Three layers, of which the last attends; no two sizes are alike.
"""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 320, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 2048,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
DELTA = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"], "head_dim": 64,
    "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 40, "linear_value_head_dim": 56,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
EXPERTS = {
    "moe_intermediate_size": 96, "shared_expert_intermediate_size": 192, "num_experts": 12, "num_experts_per_tok": 3,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 16, "mamba_d_head": 40, "mamba_n_groups": 2,
    "mamba_d_state": 24, "mamba_chunk_size": 64, "num_attention_heads": 10,
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "num_attention_heads": 10, "head_dim": 48, "intermediate_size": 736,
    "mamba_num_heads": 16, "mamba_head_dim": 40, "n_groups": 2, "ssm_state_size": 24, "chunk_size": 64,
    "n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 96,
    "moe_shared_expert_intermediate_size": 192,
}  # fmt: skip
KIMI = {
    "model_type": "kimi_linear", "num_hidden_layers": 2, "num_key_value_heads": 6, "linear_num_heads": 3,
    "linear_head_dim": 40, "intermediate_size": 736, "moe_intermediate_size": 96, "num_experts": 12,
    "num_experts_per_token": 3, "pad_token_id": 0, "kv_lora_rank": 72,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 48, "v_head_dim": 56,
}  # fmt: skip
KINDS = {"layer_types": ["mamba", "mamba", "attention"]}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"model_type": "qwen3_5_text", **DELTA, "intermediate_size": 736},
    "qwen3_5_moe_text": {"model_type": "qwen3_5_moe_text", **DELTA, **EXPERTS},
    "qwen3_next": {"model_type": "qwen3_next", **DELTA, **EXPERTS, "intermediate_size": 736, "mlp_only_layers": [1]},
    "granitemoehybrid": {
        "model_type": "granitemoehybrid", **MAMBA, **KINDS, "intermediate_size": 96, "num_local_experts": 12,
        "num_experts_per_tok": 3, "shared_intermediate_size": 192, "residual_multiplier": 0.22,
    },
    "granitemoehybrid-dense": {
        "model_type": "granitemoehybrid", **MAMBA, **KINDS, "intermediate_size": 96, "num_local_experts": 0,
        "shared_intermediate_size": 736, "position_embedding_type": "rope",
    },
    "falcon_h1": {
        "model_type": "falcon_h1", **MAMBA, "num_hidden_layers": 2, "mamba_d_ssm": 640,
        "intermediate_size": 736, "head_dim": 48, "mlp_multipliers": [0.9, 0.8], "key_multiplier": 0.5,
    },
    "falcon_h1-normed": {
        "model_type": "falcon_h1", **MAMBA, "num_hidden_layers": 2, "mamba_d_ssm": 640,
        "intermediate_size": 736, "head_dim": 48, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
    },
    "nemotron_h": NEMOTRON | {"hybrid_override_pattern": "ME*-", "num_hidden_layers": 4},
    "nemotron_h-latent": NEMOTRON | {
        "layers_block_type": ["moe", "mamba", "attention"], "moe_latent_size": 160, "use_bias": True, "mlp_bias": True,
    },
    "minimax": {
        "model_type": "minimax", "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "head_dim": 48, "intermediate_size": 96, "num_local_experts": 12, "num_experts_per_tok": 3, "block_size": 104,
    },
    "kimi_linear": KIMI | {"layer_types": ["linear_attention", "full_attention"]},
}  # fmt: skip
VISION = {
    "model_type": "qwen3_5_vision", "depth": 2, "hidden_size": 192, "intermediate_size": 448, "num_heads": 6,
    "out_hidden_size": 320,
}  # fmt: skip
WITH_EYES = {"model_type": "qwen3_5", "vision_config": VISION, "text_config": SIZES | MODELS["qwen3_5_text"]}
"""Of which `AutoModelForCausalLM` makes the text part alone."""
ATTENTION = {"rank": 8, "targets": ["q_proj", "v_proj", "out_proj"], "adapter_dtype": "float32", "dropout": 0.05}
EVERYTHING = {"rank": 8, "targets": "all-linear", "adapter_dtype": "float32", "dropout": 0.0}
CHECKPOINTED = {"gradient_checkpointing": True}
TRAININGS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": None},
    "full-checkpointed": {"method": "full", "weights_dtype": "float32", **CHECKPOINTED},
    "lora": {"method": "lora", "lora": ATTENTION, "autocast": None},
    "all": {"method": "lora", "lora": EVERYTHING},
    "all-checkpointed": {"method": "lora", "lora": EVERYTHING, "autocast": None, **CHECKPOINTED},
    "qlora": {"method": "qlora", "quantization": {"format": "nf4"}, "lora": ATTENTION, **CHECKPOINTED},
    "lengths": {"method": "full", "lengths": [96, 256, 130]},
}

NO_OUT_PROJ = {
    "lora": {"targets": ["q_proj", "v_proj", "in_proj"]},
    "all": {"targets": ["q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "gate_proj", "up_proj", "down_proj"]},
}  # fmt: skip
"""What PEFT adapts in Falcon H1 and Nemotron-H, where it refuses `out_proj`."""


def trained(model: str, training: str) -> dict[str, Any]:
    values = TRAININGS[training]
    if model.startswith("kimi_linear") and values.get("lora") is ATTENTION:
        return values | {"lora": ATTENTION | {"targets": ["q_proj", "v_proj", "kv_b_proj", "f_b_proj"]}}
    if not model.startswith(("falcon_h1", "nemotron_h")) or "lora" not in values:
        return values
    chosen = NO_OUT_PROJ["all" if training.startswith("all") else "lora"]["targets"]
    targets = [name for name in chosen if name != "gate_proj" or model.startswith("falcon_h1")]
    return values | {"lora": values["lora"] | {"targets": targets}}


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (f"{model}-{training}", trained(model, training), SIZES | config)
    for model, config in MODELS.items()
    for training in TRAININGS
    if "-" not in model or training in ("full-checkpointed", "all", "lengths")
]
CASES += [("qwen3_5-full", TRAININGS["full"], WITH_EYES)]
