"""Checkpoints that are stored quantised.

Of those that are dequantised as they are loaded, MXFP4 and blocks of FP8, training sees plain weights, and what differs
is how they come. Of the others only that is compared here (`LOADS`, in test_loading.py).
"""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    "vocab_size": 2048, "tie_word_embeddings": False,
}  # fmt: skip
MXFP4: dict[str, Any] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
    ],
}  # fmt: skip
FP8: dict[str, Any] = {
    "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
}  # fmt: skip
GPT_OSS = SIZES | {
    "model_type": "gpt_oss", "intermediate_size": 320, "sliding_window": 128, "num_local_experts": 8,
    "num_experts_per_tok": 2, "quantization_config": MXFP4,
}  # fmt: skip
QWEN = SIZES | {"model_type": "qwen3", "intermediate_size": 640, "quantization_config": FP8}
MOE = SIZES | {
    "model_type": "qwen3_moe", "intermediate_size": 640, "moe_intermediate_size": 128, "num_experts": 8,
    "num_experts_per_tok": 2, "quantization_config": FP8,
}  # fmt: skip
DEEPSEEK = SIZES | {
    "model_type": "deepseek_v3", "intermediate_size": 640, "moe_intermediate_size": 128, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 128,
    "kv_lora_rank": 112, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "n_group": 2,
    "topk_group": 1, "num_key_value_heads": 8, "head_dim": 16, "quantization_config": FP8,
}  # fmt: skip
LORA: dict[str, Any] = {"method": "lora", "lora": {"rank": 8, "targets": "attention", "dropout": 0.0}}

CASES: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    ("mxfp4-lora", LORA, GPT_OSS),
    ("mxfp4-lora-recomputed", {**LORA, "gradient_checkpointing": True}, GPT_OSS),
    ("mxfp4-full", {"method": "full"}, GPT_OSS),
    ("fp8-full", {"method": "full"}, QWEN),
    ("fp8-full-fp32", {"method": "full", "weights_dtype": "float32"}, QWEN),
    ("fp8-biased-tied", {"method": "full"}, QWEN | {"attention_bias": True, "tie_word_embeddings": True}),
    ("fp8-small-blocks", {"method": "full"}, QWEN | {"quantization_config": FP8 | {"weight_block_size": [64, 32]}}),
    (
        "fp8-one-stays",
        {"method": "full"},
        QWEN | {"quantization_config": FP8 | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.up_proj"]}},
    ),
    ("fp8-experts", {"method": "full"}, MOE),
    ("fp8-latent-attention", {"method": "full"}, DEEPSEEK),
]

NF4: dict[str, Any] = {
    "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
}  # fmt: skip
SOME = NF4 | {"llm_int8_skip_modules": ["lm_head", "model.layers.0.mlp"]}
BIASED = {"attention_bias": True, "tie_word_embeddings": True}
LOADS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("fp8-lora", LORA, QWEN),
    ("fp8-lora-biased-tied", LORA, QWEN | BIASED),
    ("fp8-lora-dequantised", {**LORA, "quantization": {"format": None}}, QWEN),
    ("nf4-stored", LORA, QWEN | {"quantization_config": NF4}),
    ("nf4-stored-once", LORA, QWEN | BIASED | {"quantization_config": NF4 | {"bnb_4bit_use_double_quant": False}}),
    ("nf4-stored-in-part", LORA, QWEN | {"quantization_config": SOME}),
    ("fp4-stored", LORA, QWEN | {"quantization_config": NF4 | {"bnb_4bit_quant_type": "fp4"}}),
]
"""From transformers 5.22 on FP8 stays as it is; before, it is dequantised."""
