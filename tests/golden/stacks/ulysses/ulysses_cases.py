"""The small jobs `make.py` traces under DeepSpeed's Ulysses. All widths differ: sizes tell tensors apart."""

from __future__ import annotations

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 736, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
JOB: dict[str, Any] = {
    "model": "small", "weights_dtype": "bfloat16", "autocast": "bfloat16", "seq_len": 256, "micro_batch": 2,
    "optimizer": "adamw_torch", "max_grad_norm": 1.0, "gradient_checkpointing": False,
}  # fmt: skip
RECOMPUTED = {"gradient_checkpointing": True}
LENGTHS = [256, 256]


def over(ranks: int, gpus: int | None = None, config: dict[str, Any] | None = None, **job: Any) -> tuple[Any, Any]:
    """Rows split over so many ranks; ZeRO's engine is no part of what is traced."""
    spread = {"data": "zero3", "context": ranks, "context_kind": "ulysses"}
    return JOB | {"hardware": {"gpus": gpus or ranks}, "parallel": spread} | job, LLAMA | (config or {})


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "2 ranks": over(2),
    "8 ranks of 2 key heads": over(8),
    "2 of 8 ranks": over(2, gpus=8),
    "one row": over(2, micro_batch=1),
    "one row, one head": over(8, micro_batch=1),
    "recomputed": over(4, **RECOMPUTED),
    "recomputed, reentrant": over(4, **RECOMPUTED, checkpoint_reentrant=True),
    "accumulated": over(2, grad_accum=2),
    "float32": over(2, autocast=None, weights_dtype="float32"),
    "bfloat16 alone": over(2, autocast=None),
    "lora": over(4, method="lora", **RECOMPUTED),
    "flash_attention_2": over(2, attention="flash_attention_2"),
    "flash_attention_3": over(2, attention="flash_attention_3"),
    "fused head": over(2, loss="chunked"),
    "fused head, lora": over(4, loss="chunked", method="lora", **RECOMPUTED),
    "liger": over(2, kernels=["liger"]),
    "qwen2": over(2, config={"model_type": "qwen2"}),
    "qwen3": over(2, config={"model_type": "qwen3"}),
    "mistral, a window": over(2, config={"model_type": "mistral", "sliding_window": 64}),
    "gemma2": over(2, config={"model_type": "gemma2", "tie_word_embeddings": True, "sliding_window": 64}),
    "mixtral": over(2, config=MIXTRAL),
}
