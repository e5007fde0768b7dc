"""Short convolutions beside attention, also with experts: full, LoRA on everything, with recomputation and without."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 320, "intermediate_size": 736, "num_hidden_layers": 2, "num_attention_heads": 10,
    "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 4096,
    "layer_types": ["conv", "full_attention"],
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 96, "num_experts": 12, "num_experts_per_tok": 3, "num_dense_layers": 1}
MODELS: dict[str, dict[str, Any]] = {
    "lfm2": {"model_type": "lfm2", "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"model_type": "lfm2_moe", **EXPERTS},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "lfm2-biased": {
        "model_type": "lfm2", "conv_bias": True, "conv_L_cache": 4, "block_multiple_of": 96, "tie_embedding": False,
        "layer_types": None, "full_attn_idxs": [0], "block_ff_dim": 1000,
    },
    "lfm2_moe-plain": {
        **MODELS["lfm2_moe"], "use_expert_bias": False, "norm_topk_prob": False, "num_dense_layers": 0,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
ATTENTION = {"rank": 8, "targets": "attention", "adapter_dtype": "float32", "dropout": 0.05}
EVERYTHING = {"rank": 8, "targets": "all-linear", "adapter_dtype": "float32", "dropout": 0.0}
CHECKPOINTED = {"gradient_checkpointing": True}
TRAININGS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": None},
    "full-fp32": {"method": "full", "weights_dtype": "float32", "autocast": None},
    "full-checkpointed": {"method": "full", "weights_dtype": "float32", **CHECKPOINTED},
    "lora": {"method": "lora", "lora": ATTENTION},
    "all": {"method": "lora", "lora": EVERYTHING},
    "all-checkpointed": {"method": "lora", "lora": EVERYTHING, "autocast": None, **CHECKPOINTED},
    "qlora": {"method": "qlora", "quantization": {"format": "nf4"}, "lora": EVERYTHING, **CHECKPOINTED},
    "eager": {"method": "full", "attention": "eager"},
}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (f"{model}-{training}", values, SIZES | config)
    for model, config in MODELS.items()
    for training, values in TRAININGS.items()
]
CASES += [
    (f"{variant}-{training}", TRAININGS[training], SIZES | config)
    for variant, config in VARIANTS.items()
    for training in ("full", "full-checkpointed", "all")
]
