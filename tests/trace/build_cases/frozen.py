"""Some parameters trained, all others frozen: what stands before the first of them runs without a graph."""

from __future__ import annotations

from typing import Any

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 3001, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
UNTIED = CONFIG | {"tie_word_embeddings": False}
LAST = {"method": "full", "trained": ["layers.2"]}
FIRST = {"method": "full", "trained": ["layers.0"], "autocast": None}
PARTS = {"method": "full", "trained": ["layers.1.mlp", "lm_head"]}
RECOMPUTED = {"gradient_checkpointing": True}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("last-layer", LAST, CONFIG),
    ("last-layer-recomputed", LAST | RECOMPUTED, CONFIG),
    ("last-layer-float32", LAST | RECOMPUTED | {"weights_dtype": "float32", "grad_accum": 2}, UNTIED),
    ("first-layer", FIRST, CONFIG),
    ("first-layer-recomputed", FIRST | RECOMPUTED, UNTIED),
    ("mlp-and-head", PARTS, UNTIED),
    ("mlp-and-head-recomputed", PARTS | RECOMPUTED, UNTIED),
    ("embeddings", {"method": "full", "trained": ["embed_tokens"], "autocast": None}, CONFIG),
]
