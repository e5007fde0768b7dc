"""Small jobs whose optimizers, or whose float8 layers, come from packages of their own: a two-layer Llama, in full and
with adapters."""

from __future__ import annotations

from typing import Any

from tunecast.tape.card import Card

STEPS = 2
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1280, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048,
    "tie_word_embeddings": False, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip
BASE = {
    "model": "small", "method": "full", "weights_dtype": "bfloat16", "autocast": None, "seq_len": 128, "micro_batch": 1,
    "gradient_checkpointing": False, "max_grad_norm": 1.0,
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "float32": {"weights_dtype": "float32", "autocast": "bfloat16"},
    "lora": {
        "method": "lora", "lora": {"rank": 24, "targets": "all-linear", "adapter_dtype": "float32"},
        "autocast": "bfloat16",
    },
}  # fmt: skip
NAMES = (
    "galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise", "apollo_adamw", "apollo_adamw_layerwise", "grokadamw", "lomo", "schedule_free_adamw",
    "schedule_free_sgd", "stable_adamw", "adamw_torch_4bit", "adamw_torch_8bit",
)  # fmt: skip
TUNED = ("adamw_torch_4bit", "adamw_torch_8bit")
"""Compiled: in the first step inductor times kernels, which is not written down."""
FLOAT8 = BASE | {"optimizer": "sgd", "matmul_dtype": "float8"}
RECOMPUTED = {"gradient_checkpointing": True}
RANK16 = {"method": "lora", "lora": {"rank": 16, "targets": "all-linear"}, "autocast": "bfloat16"}
"""Adapters of this rank are float8 layers too."""
BIASED = LLAMA | {"attention_bias": True}
OPTIMIZERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    f"{name}-{way}": (BASE | change | {"optimizer": name}, LLAMA) for name in NAMES for way, change in WAYS.items()
}
LAYERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"float8-{way}": (FLOAT8 | change, LLAMA) for way, change in WAYS.items()},
    "float8-recomputed": (FLOAT8 | RECOMPUTED | {"autocast": "bfloat16"}, BIASED),
    "float8-rank16": (FLOAT8 | RANK16 | RECOMPUTED, LLAMA),
}
FLOAT4 = FLOAT8 | {"matmul_dtype": "float4"}
ON_BLACKWELL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"float4-{way}": (FLOAT4 | change, LLAMA) for way, change in WAYS.items()},
    "float4-recomputed": (FLOAT4 | RECOMPUTED | {"autocast": "bfloat16"}, BIASED),
}
CASES = OPTIMIZERS | LAYERS | ON_BLACKWELL


def card_of(name: str) -> Card:
    return Card(capability=(10, 0)) if name in ON_BLACKWELL else Card()


def first_compared(name: str) -> int:
    return 1 if name.startswith(TUNED) else 0
