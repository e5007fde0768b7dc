"""Dense decoders of Llama's shape and what each family does otherwise, on small sizes that tell tensors apart."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 320, "intermediate_size": 736, "num_hidden_layers": 2, "num_attention_heads": 10,
    "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
TIED = {"tie_word_embeddings": True}
WIDE = {"head_dim": 48}
BOTH_KINDS = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]}
PAD = {"pad_token_id": 0}

FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": WIDE,
    "gemma": {**WIDE, **TIED},
    "gemma2": {**WIDE, **TIED, "sliding_window": 128},
    "gemma3_text": {**WIDE, **TIED, **BOTH_KINDS},
    "phi3": PAD,
    "granite": {**TIED, "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22},
    "olmo": {},
    "olmo2": {},
    "olmo3": BOTH_KINDS,
    "smollm3": {**PAD, "no_rope_layers": [1, 0]},
    "stablelm": {"partial_rotary_factor": 0.25, "use_qkv_bias": True},
    "cohere": TIED,
    "cohere2": {**TIED, **BOTH_KINDS},
    "glm": {**PAD, **WIDE},
    "glm4": {**PAD, **WIDE},
    "seed_oss": {"head_dim": 32},
    "arcee": {"hidden_act": "relu2"},
    "cwm": {"head_dim": 32, **BOTH_KINDS},
    "ministral": {"head_dim": 32, **BOTH_KINDS},
    "ministral3": {"head_dim": 48},
    "hunyuan_v1_dense": {"head_dim": 32},
    "exaone4": {"head_dim": 32, **BOTH_KINDS},
    "ernie4_5": {"head_dim": 32, **TIED},
}
LONG = {"short_factor": [1.0] * 160, "long_factor": [2.0] * 160, "rope_type": "longrope"}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}  # fmt: skip
VISION = {
    "hidden_size": 192, "intermediate_size": 448, "num_hidden_layers": 2, "num_attention_heads": 6, "image_size": 112,
    "patch_size": 14, "model_type": "siglip_vision_model", "vision_use_head": False,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "llama-llama3": {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": LLAMA3},
    "llama-dynamic": {"model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama-narrow-heads": {"model_type": "llama", "head_dim": 20, "attention_bias": True},
    "llama-wide-heads": {"model_type": "llama", "head_dim": 288, "attention_dropout": 0.1},
    "mistral-window": {"model_type": "mistral", "sliding_window": 128},
    "ministral3-window": {"model_type": "ministral3", "sliding_window": 128},
    "qwen2-window": {
        "model_type": "qwen2", "sliding_window": 128, "use_sliding_window": True, "max_window_layers": 1,
    },
    "phi3-partial": {"model_type": "phi3", **PAD, **TIED, "partial_rotary_factor": 0.75},
    "phi3-long": {
        "model_type": "phi3", **PAD, "hidden_size": 1280, "num_attention_heads": 4, "rope_scaling": LONG,
        "original_max_position_embeddings": 128,
    },
    "phi3-short": {
        "model_type": "phi3", **PAD, "hidden_size": 1280, "num_attention_heads": 4, "rope_scaling": LONG,
        "original_max_position_embeddings": 2048,
    },
    "stablelm-parallel": {"model_type": "stablelm", "qk_layernorm": True, "use_parallel_residual": True},
    "cohere-norms": {"model_type": "cohere", **TIED, "use_qk_norm": True},
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3", "vision_config": VISION, "mm_tokens_per_image": 16, "image_token_index": 2000,
    "text_config": {
        **SIZES, **FAMILIES["gemma3_text"], "model_type": "gemma3_text", "layer_types": ["sliding_attention"] * 2,
    },
}  # fmt: skip
"""One kind of layers: with two, transformers makes their masks in an order of chance."""

EVERYTHING = {"rank": 8, "targets": "all-linear", "adapter_dtype": "float32", "dropout": 0.0}
ATTENTION = {"rank": 8, "targets": "attention", "adapter_dtype": "float32", "dropout": 0.1}
RECOMPUTED = {"gradient_checkpointing": True}
TRAININGS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": None},
    "full-fp32": {"method": "full", "weights_dtype": "float32", "autocast": None},
    "full-mixed-recomputed": {"method": "full", "weights_dtype": "float32", **RECOMPUTED},
    "lora": {"method": "lora", "lora": ATTENTION},
    "lora-recomputed": {"method": "lora", "lora": EVERYTHING, **RECOMPUTED},
    "qlora-recomputed": {"method": "qlora", "quantization": {"format": "nf4"}, "lora": EVERYTHING, **RECOMPUTED},
    "eager": {"method": "full", "attention": "eager"},
}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (f"{family}-{training}", values, {**SIZES, "model_type": family, **config})
    for family, config in FAMILIES.items()
    for training, values in TRAININGS.items()
    if training != "full-fp32" or family in ("qwen3", "gemma2", "cohere2")
]
CASES += [
    (f"{variant}-{training}", TRAININGS[training], SIZES | config)
    for variant, config in VARIANTS.items()
    for training in ("full", "lora-recomputed")
]
CASES += [
    (f"gemma3-{training}", TRAININGS[training], GEMMA3)
    for training in ("full", "full-mixed-recomputed", "lora-recomputed")
]

CROSSING = {"lengths": [96, 256, 128]}
"""Below the window, beyond it and as long."""
WINDOWED: dict[str, dict[str, Any]] = {
    **{name: SIZES | VARIANTS[name] for name in ("mistral-window", "qwen2-window")},
    **{name: {**SIZES, "model_type": name, **FAMILIES[name]} for name in ("gemma2", "gemma3_text", "olmo3")},
}
WINDOWS: dict[str, dict[str, Any]] = {
    "crossing": {**TRAININGS["lora"], **CROSSING},
    "crossing-recomputed": {**TRAININGS["qlora-recomputed"], **CROSSING},
    "flash-crossing": {**TRAININGS["lora-recomputed"], **CROSSING, "attention": "flash_attention_2"},
}
CASES += [(f"{name}-{kind}", values, config) for name, config in WINDOWED.items() for kind, values in WINDOWS.items()]
