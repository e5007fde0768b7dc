"""Small jobs under DeepSpeed's ZeRO: what tests/trace/test_deepspeed.py traces and builds. Sizes tell tensors apart."""

from __future__ import annotations

from typing import Any

from cases import GEMMA, GPT2, JOB, LLAMA, LORA, MIXTRAL, RECOMPUTED, TIED

QLORA = {**RECOMPUTED, "method": "qlora"}
SMALL = {"reduce_bucket_size": 300_000}
"""Smaller than the embedding, larger than any other weight."""
TIGHT = SMALL | {
    "stage3_prefetch_bucket_size": 250_000, "stage3_max_live_parameters": 900_000, "stage3_max_reuse_distance": 600_000,
    "stage3_param_persistence_threshold": 3200,
}  # fmt: skip
"""Of stage 3: a few weights are fetched ahead, and let go before they are needed again."""
TIGHT_PACKED = TIGHT | {"stage3_max_live_parameters": 300_000, "stage3_max_reuse_distance": 100_000}
"""Two 4-bit values a byte, two bytes an element: as tight for packed weights."""
FLOAT16 = {"autocast": "float16", "weights_dtype": "float32"}
FLOAT32 = {"autocast": None, "weights_dtype": "float32"}
QWEN3_MOE = {
    "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip

Case = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def zero(
    stage: int, *parts: dict[str, Any], config: dict[str, Any] | None = None, file: dict[str, Any] | None = None,
    gpus: int = 8, nodes: int = 1, offload: str = "none",
) -> Case:  # fmt: skip
    """A job, what differs from the model above, and what differs from DeepSpeed's defaults (`zero_optimization`)."""
    job = {"hardware": {"gpus": gpus, "nodes": nodes}, "parallel": {"data": f"zero{stage}", "offload": offload}}
    for part in parts:
        job |= part
    return job, config or {}, file or {}


ACCUMULATED = {"grad_accum": 3}
LIGER = {"kernels": ["liger"]}
CASES: dict[str, Case] = {
    "zero1": zero(1),
    "zero1-accumulated": zero(1, ACCUMULATED, RECOMPUTED),
    "zero1-uneven-buckets": zero(1, gpus=7, file=SMALL),
    "zero1-two-streams": zero(1, {"grad_accum": 2}, gpus=2, file=SMALL | {"overlap_comm": True}),
    "zero1-offloaded": zero(1, {"grad_accum": 2}, gpus=2, offload="optimizer"),
    "zero1-unclipped": zero(1, {"max_grad_norm": 0, "optimizer": "sgd"}),
    "zero2": zero(2, gpus=2),
    "zero2-float32": zero(2, FLOAT32, gpus=2),
    "zero2-accumulated": zero(2, ACCUMULATED, config=TIED),
    "zero2-dealt": zero(2, {"grad_accum": 2}, file={"round_robin_gradients": True}),
    "zero2-two-streams": zero(2, {"grad_accum": 2}, gpus=2, file=SMALL | {"overlap_comm": True}),
    "zero2-lora-accumulated": zero(2, LORA, {"grad_accum": 2}, gpus=2),
    "zero2-qlora": zero(2, QLORA),
    "zero2-gpt2": zero(2, {"optimizer": "adamw_8bit"}, config=GPT2),
    "zero2-offloaded-buckets": zero(2, gpus=2, offload="optimizer", file=SMALL),
    "zero3": zero(3),
    "zero3-float16": zero(3, FLOAT16),
    "zero3-accumulated": zero(3, ACCUMULATED, file=TIGHT),
    "zero3-recomputed": zero(3, RECOMPUTED, file=TIGHT),
    "zero3-reentrant": zero(3, RECOMPUTED, {"checkpoint_reentrant": True}),
    "zero3-uneven": zero(3, gpus=7, file=TIGHT),
    "zero3-nodes": zero(3, gpus=4, nodes=2, file={"sub_group_size": 100_000}),
    "zero3-one-stream": zero(3, RECOMPUTED, {"grad_accum": 2}, file={"overlap_comm": False}),
    "zero3-tied": zero(3, config=GEMMA),
    "zero3-gpt2": zero(3, RECOMPUTED, config=GPT2, file=TIGHT),
    "zero3-experts": zero(3, config=MIXTRAL),
    "zero3-experts-recomputed": zero(3, RECOMPUTED, config=QWEN3_MOE),
    "zero3-lora": zero(3, LORA),
    "zero3-lora-whole-graph": zero(3, {"method": "lora"}, file=TIGHT),
    "zero3-lora-everywhere": zero(3, LORA, {"lora": {"targets": "all-linear"}, "grad_accum": 2}),
    "zero3-qlora": zero(3, QLORA),
    "zero3-qlora-tight": zero(3, QLORA, file=TIGHT_PACKED),
    "zero3-qlora-reentrant": zero(3, QLORA, {"checkpoint_reentrant": True, "grad_accum": 2}, file=TIGHT_PACKED),
    "zero3-offloaded": zero(3, {"grad_accum": 2}, offload="optimizer"),
    "zero3-offloaded-parameters": zero(3, {"grad_accum": 2}, offload="parameters", file=TIGHT),
    "zero3-offloaded-lora": zero(3, LORA, offload="parameters"),
    "zero3-liger": zero(3, RECOMPUTED, LIGER, file=TIGHT),
    "zero3-lora-liger": zero(3, LORA, LIGER),
}


def case(name: str) -> tuple[dict[str, Any], dict[str, Any], list[int], dict[str, Any]]:
    job, changes, file = CASES[name]
    config = changes if changes.get("model_type") == "gpt2" else LLAMA | changes
    return JOB | job, config, [JOB["seq_len"]] * 2, file
