"""Checkpointing of the older kind (use_reentrant=True), which Axolotl and LLaMA-Factory still ask for."""

from __future__ import annotations

from typing import Any

WIDTHS = {
    "hidden_size": 320, "intermediate_size": 768, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 40, "vocab_size": 2048, "max_position_embeddings": 512,
}  # fmt: skip
LLAMA = {"model_type": "llama", **WIDTHS, "tie_word_embeddings": False}
MISTRAL = {"model_type": "mistral", **WIDTHS, "sliding_window": 128}
GPT2 = {
    "model_type": "gpt2", "n_embd": 384, "n_head": 6, "n_layer": 2, "n_positions": 512, "vocab_size": 2048,
}  # fmt: skip
OLDER = {"gradient_checkpointing": True, "checkpoint_reentrant": True}
SOME = {"rank": 4, "targets": ["q_proj", "v_proj"], "adapter_dtype": "float32", "dropout": 0.1}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("full", {"method": "full", "autocast": None, **OLDER}, LLAMA),
    ("full-fp32-autocast", {"method": "full", "weights_dtype": "float32", **OLDER}, LLAMA),
    ("lora", {"method": "lora", "lora": SOME, **OLDER}, LLAMA),
    ("lora-flash-accumulated",
     {"method": "lora", "lora": SOME, "attention": "flash_attention_2", "grad_accum": 2, **OLDER}, LLAMA),
    ("qlora", {"method": "qlora", "lora": SOME, **OLDER}, LLAMA),
    ("window", {"method": "lora", "lora": SOME, **OLDER}, MISTRAL),
    ("gpt2", {"method": "full", "autocast": None, **OLDER}, GPT2),
]  # fmt: skip
