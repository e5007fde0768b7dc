"""Small sharded jobs: what tests/trace/test_sharding.py traces and builds. Sizes tell tensors apart."""

from __future__ import annotations

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 320, "intermediate_size": 736, "num_hidden_layers": 2,
    "num_attention_heads": 10, "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
TIED = {"tie_word_embeddings": True}
WIDE = {"vocab_size": 32000, "intermediate_size": 8000}
"""Gradients of several buckets."""
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
GEMMA = {**TIED, "model_type": "gemma2", "head_dim": 48, "sliding_window": 128}
GPT2 = {
    "model_type": "gpt2", "n_embd": 320, "n_layer": 2, "n_head": 10, "n_positions": 512, "vocab_size": 2048, **TIED,
}  # fmt: skip
JOB: dict[str, Any] = {
    "model": "small", "weights_dtype": "bfloat16", "autocast": "bfloat16", "seq_len": 256, "micro_batch": 2,
    "optimizer": "adamw_torch", "max_grad_norm": 1.0, "gradient_checkpointing": False,
}  # fmt: skip
RECOMPUTED = {"gradient_checkpointing": True}
LORA = {"method": "lora", **RECOMPUTED}
EIGHT, SEVEN, TWO = ({"hardware": {"gpus": gpus}} for gpus in (8, 7, 2))
NODES = {"hardware": {"gpus": 4, "nodes": 2}}


def sharded(data: str = "fsdp", **how: Any) -> dict[str, Any]:
    return {"parallel": {"data": data, **how}}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "replicas-2": (TWO, {}),
    "replicas-8-recomputed": (EIGHT | RECOMPUTED, {}),
    "replicas-8-accumulated": (EIGHT | {"grad_accum": 2, "weights_dtype": "float32"}, WIDE),
    "replicas-8-rebuilt": (EIGHT | RECOMPUTED | {"grad_accum": 2, "weights_dtype": "float32"}, WIDE),
    "replicas-8-synced": (
        EIGHT | RECOMPUTED | sharded("ddp", sync_each_batch=True) | {"grad_accum": 3, "weights_dtype": "float32"},
        WIDE,
    ),
    "replicas-8-lora": (EIGHT | LORA, {}),
    "replicas-8-qlora": (EIGHT | RECOMPUTED | {"method": "qlora"}, {}),
    "fsdp-2": (TWO | sharded(), {}),
    "fsdp-8": (EIGHT | sharded(), {}),
    "fsdp-7-uneven": (SEVEN | sharded(), {}),
    "fsdp-8-float32": (EIGHT | sharded() | {"autocast": None, "weights_dtype": "float32"}, {}),
    "fsdp-8-float16": (EIGHT | sharded() | {"autocast": "float16", "weights_dtype": "float32"}, {}),
    "fsdp-8-recomputed": (EIGHT | sharded() | RECOMPUTED, {}),
    "fsdp-8-reentrant": (EIGHT | sharded() | RECOMPUTED | {"checkpoint_reentrant": True}, {}),
    "fsdp-8-accumulated": (EIGHT | sharded() | RECOMPUTED | {"grad_accum": 3}, {}),
    "fsdp-8-synced": (EIGHT | sharded(sync_each_batch=True) | RECOMPUTED | {"grad_accum": 3}, {}),
    "fsdp-8-synced-wide-sums": (EIGHT | sharded(sync_each_batch=True, reduce_dtype="float32") | {"grad_accum": 2}, {}),
    "fsdp-8-synced-lora": (EIGHT | sharded(sync_each_batch=True) | LORA | {"grad_accum": 3}, TIED),
    "fsdp-8-synced-qlora": (
        EIGHT | sharded(sync_each_batch=True) | RECOMPUTED | {"method": "qlora", "grad_accum": 2},
        {},
    ),
    "fsdp-8-synced-offloaded": (EIGHT | sharded(offload="parameters", sync_each_batch=True) | {"grad_accum": 2}, {}),
    "fsdp-8-wide-sums": (EIGHT | sharded(reduce_dtype="float32") | {"grad_accum": 2}, {}),
    "fsdp-8-wide-sums-recomputed": (EIGHT | sharded(reduce_dtype="float32") | RECOMPUTED | {"grad_accum": 3}, {}),
    "fsdp-7-wide-sums-float16": (
        SEVEN | sharded(reduce_dtype="float32") | {"autocast": "float16", "weights_dtype": "float32", "grad_accum": 2},
        {},
    ),
    "fsdp-8-wide-sums-offloaded": (
        EIGHT | sharded(reduce_dtype="float32", offload="parameters") | {"grad_accum": 2},
        {},
    ),
    "fsdp-8-kept": (EIGHT | sharded(reshard_after_forward=False), {}),
    "fsdp-8-tied": (EIGHT | sharded(), TIED),
    "fsdp-8-gemma": (EIGHT | sharded(), GEMMA),
    "fsdp-8-experts": (EIGHT | sharded(), MIXTRAL),
    "fsdp-8-gpt2": (EIGHT | sharded(), GPT2),
    "fsdp-8-fused": (EIGHT | sharded() | {"optimizer": "adamw_torch_fused"}, {}),
    "fsdp-8-rmsprop": (EIGHT | sharded() | {"optimizer": "rmsprop"}, {}),
    "fsdp-8-adagrad": (EIGHT | sharded() | {"optimizer": "adagrad"}, {}),
    "fsdp-8-sgd": (EIGHT | sharded() | {"optimizer": "sgd", "max_grad_norm": 0}, {}),
    "fsdp-8-lora": (EIGHT | sharded() | LORA, {}),
    "fsdp-8-lora-whole-graph": (EIGHT | sharded() | {"method": "lora"}, {}),
    "fsdp-8-lora-accumulated": (EIGHT | sharded() | LORA | {"grad_accum": 2}, TIED),
    "fsdp-8-qlora": (EIGHT | sharded() | RECOMPUTED | {"method": "qlora"}, {}),
    "fsdp-8-offloaded": (EIGHT | sharded(offload="parameters") | {"grad_accum": 2}, {}),
    "fsdp-8-offloaded-lora": (EIGHT | sharded(offload="parameters") | LORA, {}),
    "hsdp-2-4": (NODES | sharded("hsdp"), {}),
    "hsdp-2-4-accumulated": (NODES | sharded("hsdp") | {"grad_accum": 2}, {}),
    "hsdp-2-4-synced": (NODES | sharded("hsdp", sync_each_batch=True) | {"grad_accum": 3}, {}),
    "hsdp-2-4-wide-sums": (NODES | sharded("hsdp", reduce_dtype="float32") | {"grad_accum": 2}, {}),
    "hsdp-2-4-lora": (NODES | sharded("hsdp") | LORA, {}),
    "hsdp-4-2-on-one-machine": (EIGHT | sharded("hsdp", replicate=4), {}),
    "hsdp-4-2-on-two-lora": (NODES | sharded("hsdp", replicate=4) | LORA, {}),
}


def case(name: str) -> tuple[dict[str, Any], dict[str, Any], list[int]]:
    job, changes = CASES[name]
    config = changes if changes.get("model_type") == "gpt2" else LLAMA | changes
    return JOB | job, config, [JOB["seq_len"]] * 2
