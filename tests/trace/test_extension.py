"""Layers extrapolated against layers traced: the same events, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.tape.card import Card
from tunecast.tape.layers import renumbered
from tunecast.tape.op import Event, Op, with_frees_in_order
from tunecast.tape.trace.engine import trace_job

pytestmark = pytest.mark.trace

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
LLAMA = {"model_type": "llama", "num_hidden_layers": 8, "tie_word_embeddings": True, **SIZES}
GEMMA = {
    "model_type": "gemma2",
    "num_hidden_layers": 8,
    "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
    **SIZES,
}
MOE = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 7,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    **SIZES,
}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 7, "n_head": 4, "vocab_size": 512, "n_positions": 256}
HALF = {"weights_dtype": "bfloat16", "micro_batch": 2, "seq_len": 128}
LORA = {"method": "lora", "autocast": "bfloat16", "lora": {"rank": 4, "targets": "all-linear", "dropout": 0.1}}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama full, tied": (LLAMA, {"gradient_checkpointing": False}),
    "llama LoRA with dropout, recomputed, mixed lengths": (
        LLAMA,
        LORA | {"gradient_checkpointing": True, "lengths": [128, 64, 96]},
    ),
    "llama nf4, 8-bit Adam": (
        LLAMA,
        LORA | {"method": "qlora", "optimizer": "adamw_8bit", "gradient_checkpointing": True},
    ),
    "gemma-2 LoRA, layers alternate": (GEMMA, LORA | {"gradient_checkpointing": False}),
    "mixture of experts, Adafactor": (MOE, {"optimizer": "adafactor", "gradient_checkpointing": True}),
    "gpt-2 under autocast, two micro-batches": (
        GPT2,
        {"weights_dtype": "float32", "autocast": "bfloat16", "grad_accum": 2, "gradient_checkpointing": False},
    ),
}


def comparable(events: list[Event]) -> list[Event]:
    """Lines of code may differ, and the amounts of operations on lists outside the layers are not what memory reads."""
    return [
        e._replace(source="", kernels=0, shapes=()) if isinstance(e, Op) else e for e in with_frees_in_order(events)
    ]


@pytest.mark.parametrize("case", CASES)
def test_extrapolated_layers_are_the_traced_ones(case: str) -> None:
    config, knobs = CASES[case]
    job = job_from_dict({"model": "llama-3.2-1b"} | HALF | knobs)
    short = trace_job(job, config, Card())
    whole = trace_job(job, config, Card(), exact=True)
    ours, theirs = comparable(renumbered(short.events)), comparable(renumbered(whole.events))
    assert len(ours) == len(theirs)
    differing = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert differing == []
