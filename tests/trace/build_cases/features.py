"""Muon, and TRL's head and loss a tile at a time (`loss: chunked`), on small models."""

from __future__ import annotations

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048,
    "tie_word_embeddings": False, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip
TIED = LLAMA | {"tie_word_embeddings": True}
MANY_WORDS = LLAMA | {"vocab_size": 40_000}
"""More than one tile of 32,768."""
GEMMA: dict[str, Any] = {
    "model_type": "gemma2", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 40_000,
    "query_pre_attn_scalar": 32, "sliding_window": 4096,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 8, "vocab_size": 40_000, "n_positions": 1024,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 40_000, "num_local_experts": 4,
}  # fmt: skip
FULL = {"method": "full", "autocast": None}
MIXED = {"method": "full", "weights_dtype": "float32"}
LORA = {"method": "lora", "lora": {"rank": 24, "targets": "all-linear"}}
MUON, CHUNKED = {"optimizer": "muon"}, {"loss": "chunked"}
RECOMPUTED = {"gradient_checkpointing": True}

CASES: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    ("muon-full", FULL | MUON, LLAMA),
    ("muon-tied-mixed", MIXED | MUON, TIED),
    ("muon-lora", LORA | MUON, LLAMA),
    ("muon-accumulated", FULL | MUON | {"grad_accum": 2, "max_grad_norm": 0.0}, LLAMA),
    ("chunked-full", FULL | CHUNKED, MANY_WORDS),
    ("chunked-tied-mixed", MIXED | CHUNKED, MANY_WORDS | {"tie_word_embeddings": True}),
    ("chunked-lora", LORA | CHUNKED | RECOMPUTED, MANY_WORDS),
    ("chunked-accumulated", FULL | CHUNKED | RECOMPUTED | {"grad_accum": 2, "seq_len": 200}, LLAMA),
    ("chunked-float32", MIXED | CHUNKED | {"autocast": None, "seq_len": 100}, MANY_WORDS),
    ("chunked-many-tokens", FULL | CHUNKED | RECOMPUTED | {"seq_len": 2600}, MANY_WORDS),
    ("chunked-gemma2", FULL | CHUNKED | RECOMPUTED | {"attention": "eager"}, GEMMA),
    ("chunked-gpt2", FULL | CHUNKED, GPT2),
    ("chunked-mixtral", FULL | CHUNKED, MIXTRAL),
]
