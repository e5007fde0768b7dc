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
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"model_type": "qwen3_5_text", **DELTA, "intermediate_size": 736},
    "qwen3_5_moe_text": {"model_type": "qwen3_5_moe_text", **DELTA, **EXPERTS},
    "qwen3_next": {"model_type": "qwen3_next", **DELTA, **EXPERTS, "intermediate_size": 736, "mlp_only_layers": [1]},
}
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

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (f"{model}-{training}", values, SIZES | config)
    for model, config in MODELS.items()
    for training, values in TRAININGS.items()
]
CASES += [("qwen3_5-full", TRAININGS["full"], WITH_EYES)]
