"""Llama in all that is not particular to a family: methods, checkpointing, dtypes, lengths, accumulation."""

from __future__ import annotations

from typing import Any

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 3001, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
UNTIED = CONFIG | {"tie_word_embeddings": False}
ALL = {"rank": 8, "targets": "all-linear", "adapter_dtype": "float32"}
SOME = {"rank": 4, "targets": ["q_proj", "v_proj"], "adapter_dtype": "float32", "dropout": 0.1}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("full", {"method": "full", "autocast": None}, CONFIG),
    ("full-recomputed", {"method": "full", "autocast": None, "gradient_checkpointing": True}, CONFIG),
    ("full-fp32-autocast", {"method": "full", "weights_dtype": "float32"}, UNTIED),
    ("full-fp32-autocast-recomputed",
     {"method": "full", "weights_dtype": "float32", "gradient_checkpointing": True}, UNTIED),
    ("full-unclipped", {"method": "full", "autocast": None, "max_grad_norm": 0.0}, CONFIG),
    ("lora", {"method": "lora", "lora": ALL}, CONFIG),
    ("lora-recomputed", {"method": "lora", "lora": ALL, "gradient_checkpointing": True}, CONFIG),
    ("lora-dropout", {"method": "lora", "lora": SOME}, UNTIED),
    ("lora-dropout-recomputed", {"method": "lora", "lora": SOME, "gradient_checkpointing": True}, UNTIED),
    ("lora-accumulated", {"method": "lora", "lora": ALL, "grad_accum": 2}, CONFIG),
    ("full-accumulated", {"method": "full", "autocast": None, "grad_accum": 3}, CONFIG),
    ("full-lengths", {"method": "full", "autocast": None, "lengths": [192, 256, 128]}, CONFIG),
]  # fmt: skip
