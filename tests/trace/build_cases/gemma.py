"""Gemma 4: dense, with an embedding for every layer and keys that layers share."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 320, "intermediate_size": 736, "num_hidden_layers": 2, "num_attention_heads": 10,
    "num_key_value_heads": 5, "vocab_size": 2048, "max_position_embeddings": 4096, "head_dim": 48,
    "global_head_dim": 80, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
DENSE = {
    "model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
    "num_global_key_value_heads": 2, "final_logit_softcapping": 30.0,
}  # fmt: skip
PER_LAYER = {
    "model_type": "gemma4_text", "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 2000,
    "num_hidden_layers": 5, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
EXPERTS = {
    **DENSE, "enable_moe_block": True, "num_experts": 12, "top_k_experts": 3, "moe_intermediate_size": 96,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {"gemma4": DENSE, "gemma4-small": PER_LAYER, "gemma4-experts": EXPERTS}
STREAMS = {
    "model_type": "gemma3n_text", "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 2000,
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "altup_num_inputs": 3, "laurel_rank": 40,
    "intermediate_size": [736, 672, 736, 672], "activation_sparsity_pattern": [0.95, 0.0, 0.95, 0.0],
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
MODELS["gemma3n"] = STREAMS
TOKENS = {"image_token_id": 2000, "video_token_id": 2001, "audio_token_id": 2002}
EYES = {
    "model_type": "gemma4_vision", "hidden_size": 192, "intermediate_size": 448, "num_hidden_layers": 2, "head_dim": 36,
    "num_attention_heads": 6, "num_key_value_heads": 3, "patch_size": 14, "position_embedding_size": 100,
}  # fmt: skip
EARS = {
    "model_type": "gemma4_audio", "hidden_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "subsampling_conv_channels": [32, 16], "output_proj_dims": 224,
}  # fmt: skip
UNIFIED_EYES = {
    "model_type": "gemma4_unified_vision", "patch_size": 4, "mm_embed_dim": 224, "mm_posemb_size": 60,
    "output_proj_dims": 224,
}  # fmt: skip
UNIFIED_EARS = {"model_type": "gemma4_unified_audio", "output_proj_dims": 88}
WITH_PARTS: dict[str, dict[str, Any]] = {
    "gemma4-seeing": {
        "model_type": "gemma4", **TOKENS, "text_config": SIZES | EXPERTS, "audio_config": None,
        "vision_config": {**EYES, "standardize": True},
    },
    "gemma4-hearing": {
        "model_type": "gemma4", **TOKENS, "text_config": SIZES | PER_LAYER, "audio_config": EARS,
        "vision_config": {**EYES, "use_clipped_linears": True},
    },
    "gemma4_unified": {
        "model_type": "gemma4_unified", **TOKENS, "vision_config": UNIFIED_EYES, "audio_config": UNIFIED_EARS,
        "text_config": SIZES | DENSE | {"model_type": "gemma4_unified_text"},
    },
}  # fmt: skip
ATTENTION = {"rank": 8, "targets": "attention", "adapter_dtype": "float32", "dropout": 0.1}
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
    if (model, training) != ("gemma3n", "qlora")  # there transformers fails: it clamps packed coefficients
]
CASES += [
    (f"{model}-{training}", values, config)
    for model, config in WITH_PARTS.items()
    for training, values in TRAININGS.items()
]
CROSSING = {"lengths": [96, 256, 128]}
"""Below the window, beyond it and as long."""
WINDOWS: dict[str, dict[str, Any]] = {
    "crossing": {**TRAININGS["all"], **CROSSING},
    "flash-crossing": {**TRAININGS["all-checkpointed"], **CROSSING, "attention": "flash_attention_2"},
    "reentrant": {"method": "lora", "lora": EVERYTHING, **CHECKPOINTED, "checkpoint_reentrant": True},
}
CASES += [
    (f"{model}-{kind}", values, config)
    for model, config in {
        "gemma4-small": SIZES | PER_LAYER, "gemma3n": SIZES | STREAMS, "gemma4_unified": WITH_PARTS["gemma4_unified"],
    }.items()
    for kind, values in WINDOWS.items()
]  # fmt: skip
