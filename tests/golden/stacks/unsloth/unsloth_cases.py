"""Small jobs whose training run was traced with the real Unsloth (`make.py`), by name: the job, its model and card.

Names begin with how the run was started: `eager` is UNSLOTH_COMPILE_DISABLE=1, `compiled` is Unsloth's default. Sizes
are chosen so that tensors can be told apart by them.
"""

from __future__ import annotations

from typing import Any

from tunecast.tape.card import Card

H200 = Card()
A100 = Card("NVIDIA A100-SXM4-80GB", 85_000_000_000, (8, 0), 108)
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1408,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 5000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "hidden_act": "silu", "dtype": "bfloat16",
}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4096}
QWEN2 = LLAMA | {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True,
    "use_sliding_window": False,
}  # fmt: skip
QWEN3 = LLAMA | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False}
LONG = LLAMA | {
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
JOB: dict[str, Any] = {
    "stack": "unsloth", "model": "llama-3.2-1b", "weights_dtype": "bfloat16", "autocast": "bfloat16", "seq_len": 256,
    "micro_batch": 2, "optimizer": "adamw_8bit", "max_grad_norm": 1.0, "gradient_checkpointing": True,
    "method": "qlora", "lora": {"rank": 16, "dropout": 0.0},
}  # fmt: skip
LORA = JOB | {"method": "lora"}
DROPPED = {"lora": {"rank": 16, "dropout": 0.05}}
OFFLOADED = {"seq_len": 1200}
"""Long enough for a layer's input to wait on the host."""

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Card]] = {
    "eager qlora": (JOB | OFFLOADED, LLAMA, H200),
    "eager qlora, dropout": (JOB | DROPPED, LLAMA, H200),
    "eager lora, 4 layers": (LORA | OFFLOADED, LLAMA | {"num_hidden_layers": 4}, H200),
    "eager qlora, no checkpointing": (JOB | {"gradient_checkpointing": False}, LLAMA, H200),
    "eager qlora, no autocast": (JOB | {"autocast": None}, LLAMA, H200),
    "eager qlora, long positions": (JOB | {"micro_batch": 1, "seq_len": 512}, LONG, H200),
    "eager qlora, every head its keys": (JOB, LLAMA | {"num_key_value_heads": 8}, H200),
    "eager lora, tiled loss": (LORA | {"micro_batch": 4, "seq_len": 1100}, LLAMA | {"vocab_size": 40003}, H200),
    "eager lora, micro-batches of one": (
        LORA | {"micro_batch": 1, "seq_len": 2304, "optimizer": "adamw_torch", "grad_accum": 2},
        LLAMA | {"num_hidden_layers": 3}, H200,
    ),
    "eager mistral": (JOB, MISTRAL, H200),
    "eager qwen2": (JOB, QWEN2, H200),
    "eager qwen3": (JOB, QWEN3, H200),
    "compiled qlora": (JOB | OFFLOADED, LLAMA, H200),
    "compiled qlora, dropout": (JOB | DROPPED, LLAMA, H200),
    "compiled lora": (LORA | OFFLOADED, LLAMA, H200),
    "compiled qlora, dropout, flash attention": (JOB | OFFLOADED | DROPPED, LLAMA, A100),
    "compiled qlora, other lengths": (JOB | {"seq_len": 2048, "lengths": [1300, 2048, 1700]}, LLAMA, H200),
    "compiled qwen2": (JOB, QWEN2, H200),
    "compiled qwen2, dropout": (JOB | OFFLOADED | DROPPED, QWEN2, H200),
    "compiled qwen2, flash attention": (JOB | OFFLOADED, QWEN2, A100),
    "compiled qwen2, lora, dropout": (LORA | OFFLOADED | DROPPED, QWEN2, H200),
    "compiled qwen3": (JOB, QWEN3, H200),
    "compiled qlora, flash attention": (JOB | OFFLOADED, LLAMA, A100),
    "compiled qlora, every head its keys": (JOB | OFFLOADED, LLAMA | {"num_key_value_heads": 8}, H200),
    "compiled qlora, every head its keys, flash attention": (
        JOB | OFFLOADED, LLAMA | {"num_key_value_heads": 8}, A100,
    ),
    "compiled qlora, batch of one": (JOB | {"micro_batch": 1, "seq_len": 2304}, LLAMA, H200),
    "compiled qlora, no checkpointing": (JOB | OFFLOADED | {"gradient_checkpointing": False}, LLAMA, H200),
}  # fmt: skip
