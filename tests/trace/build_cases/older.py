"""Attention implementations, and the architectures that came before Llama's became everybody's.

Sizes are small and all different, so that no two tensors can be taken for each other.
"""

from __future__ import annotations

from typing import Any

LLAMA = {
    "model_type": "llama", "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 896, "num_hidden_layers": 2, "vocab_size": 2048, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
ONE_HEAD_A_KEY = {**LLAMA, "num_key_value_heads": 6}

GPT2 = {
    "model_type": "gpt2", "n_embd": 384, "n_head": 6, "n_layer": 2, "n_positions": 512, "vocab_size": 2048,
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1152,
    "num_hidden_layers": 2, "vocab_size": 2048, "rotary_pct": 0.25, "tie_word_embeddings": False,
}  # fmt: skip
SERIAL_NEOX = {**NEOX, "use_parallel_residual": False, "hidden_dropout": 0.1, "attention_dropout": 0.1}

TRAININGS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "weights_dtype": "bfloat16"},
    "full_fp32": {"method": "full", "weights_dtype": "float32"},
    "full_autocast": {
        "method": "full", "weights_dtype": "float32", "autocast": "bfloat16", "gradient_checkpointing": True,
    },
    "lora": {"method": "lora", "lora": {"rank": 8, "adapter_dtype": "float32"}, "autocast": "bfloat16"},
    "lora_all": {
        "method": "lora", "lora": {"rank": 8, "targets": "all-linear", "adapter_dtype": "float32", "dropout": 0.05},
        "autocast": "bfloat16", "gradient_checkpointing": True,
    },
    "lora_attention": {
        "method": "lora", "lora": {"rank": 8, "targets": "attention", "adapter_dtype": "bfloat16"},
        "gradient_checkpointing": True,
    },
}  # fmt: skip
BASE = {"weights_dtype": "bfloat16", "autocast": None, "seq_len": 256, "micro_batch": 2, "gradient_checkpointing": False}


def cases(name: str, model: str, config: dict[str, Any], *trainings: str, **more: Any) -> list[Any]:
    return [
        (f"{name} {training}", {**BASE, "model": model, **TRAININGS[training], **more}, config)
        for training in trainings or TRAININGS
    ]


CASES: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    *cases("llama eager", "llama-3.2-1b", LLAMA, attention="eager"),
    *cases("llama flash2", "llama-3.2-1b", LLAMA, "full", "full_autocast", "lora_all", attention="flash_attention_2"),
    *cases("llama flash2 one row", "llama-3.2-1b", LLAMA, "lora_all", attention="flash_attention_2", micro_batch=1),
    *cases("llama flash3", "llama-3.2-1b", LLAMA, "full", "lora_all", attention="flash_attention_3"),
    *cases("llama math", "llama-3.2-1b", LLAMA, "full_fp32"),
    *cases("llama efficient", "llama-3.2-1b", ONE_HEAD_A_KEY, "full_fp32"),
    *cases("gpt2", "gpt2", GPT2),
    *cases("gpt2 eager", "gpt2", GPT2, "full", "lora_all", attention="eager"),
    *cases("gpt2 flash2", "gpt2", GPT2, "lora_all", attention="flash_attention_2"),
    *cases("gpt_neox", "pythia-160m", NEOX),
    *cases("gpt_neox eager", "pythia-160m", NEOX, "full", "lora_all", attention="eager"),
    *cases("gpt_neox flash2", "pythia-160m", NEOX, "lora_all", attention="flash_attention_2"),
    *cases("gpt_neox serial", "pythia-160m", SERIAL_NEOX, "full", "lora_all"),
]
