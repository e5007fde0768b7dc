"""Small jobs of Megatron Core: what tests/trace/test_megatron.py traces and builds. Sizes tell tensors apart."""

from __future__ import annotations

from typing import Any

from cases import JOB, LLAMA, RECOMPUTED, TIED

MEGATRON = JOB | {"stack": "megatron", "method": "full", "autocast": None}
ONE_HEAD_A_KEY = {"num_key_value_heads": 10}
ACCUMULATED = {"grad_accum": 2}


def on(gpus: int, **parallel: Any) -> dict[str, Any]:
    return {"hardware": {"gpus": gpus}, "parallel": parallel}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dense": (on(1), {}),
    "dense-one-row": (on(1) | {"micro_batch": 1}, {}),
    "dense-accumulated": (on(1) | ACCUMULATED, TIED),
    "dense-recomputed": (on(1) | RECOMPUTED, {}),
    "dense-unclipped": (on(1) | {"max_grad_norm": 0}, ONE_HEAD_A_KEY),
    "replicas": (on(8, data="ddp") | ACCUMULATED, {}),
    "replicas-narrow-sums": (on(2, data="ddp", reduce_dtype="bfloat16"), {}),
    "tensor-2": (on(2, tensor=2), {}),
    "tensor-2-whole-tokens": (on(2, tensor=2, sequence_parallel=False), TIED),
    "tensor-2-recomputed": (on(2, tensor=2) | RECOMPUTED | ACCUMULATED, {}),
    "sharing": (on(8, data="zero1"), {}),
    "sharing-uneven": (on(6, data="zero1") | ACCUMULATED, ONE_HEAD_A_KEY),
    "sharing-narrow-sums": (on(8, data="zero1", reduce_dtype="bfloat16"), {}),
    "sharing-tensor-2": (on(8, data="zero1", tensor=2), TIED),
}


def case(name: str) -> tuple[dict[str, Any], dict[str, Any], list[int]]:
    job, changes = CASES[name]
    return MEGATRON | job, LLAMA | changes, [JOB["seq_len"]] * 2
