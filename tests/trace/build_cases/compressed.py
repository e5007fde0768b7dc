"""DeepSeek-V4: a layer of each kind, the first of which looks experts up by token; no two sizes are alike.

Its grouped layer is neither packed by bitsandbytes nor adapted by PEFT: both put a plain layer in its place, and its
next fails.
"""

from __future__ import annotations

from typing import Any

V4: dict[str, Any] = {
    "model_type": "deepseek_v4", "hidden_size": 320, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 80,
    "vocab_size": 2048, "max_position_embeddings": 4096, "tie_word_embeddings": False, "moe_intermediate_size": 96,
    "q_lora_rank": 112, "qk_rope_head_dim": 16, "num_experts_per_tok": 3, "n_routed_experts": 12, "hc_mult": 4,
    "hc_sinkhorn_iters": 3, "sliding_window": 72, "o_groups": 2, "o_lora_rank": 56, "index_n_heads": 5,
    "index_head_dim": 24, "index_topk": 20, "num_hash_layers": 1,
    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
}  # fmt: skip
LORA = {
    "rank": 8, "targets": ["q_a_proj", "q_b_proj", "kv_proj", "o_b_proj"], "adapter_dtype": "float32", "dropout": 0.05,
}  # fmt: skip
TRAININGS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "full-float32": {"method": "full", "weights_dtype": "float32"},
    "full-checkpointed": {"method": "full", "gradient_checkpointing": True},
    "lora": {"method": "lora", "lora": LORA},
    "lora-checkpointed": {"method": "lora", "lora": LORA, "gradient_checkpointing": True},
    "lengths": {"method": "full", "lengths": [96, 256, 130]},
}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (f"deepseek_v4-{training}", values, V4) for training, values in TRAININGS.items()
]
