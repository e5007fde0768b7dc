"""What program.py and program_0_1.py are traced with: two steps of two layers, sizes that tell tensors apart."""

from __future__ import annotations

from typing import Any

STEPS = 2
LLAMA3 = {
    "model_type": "llama", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    "rope_scaling": {"factor": 8}, "tie_word_embeddings": False,
}  # fmt: skip
TIED = LLAMA3 | {"tie_word_embeddings": True}
LLAMA2 = {name: value for name, value in LLAMA3.items() if name != "rope_scaling"}
WIDE = LLAMA3 | {"hidden_size": 1024, "num_attention_heads": 16}
"""Norms of more than a KiB, which is where saved tensors begin to leave for the host."""
GEMMA = LLAMA2 | {"model_type": "gemma", "head_dim": 64}
QWEN2 = LLAMA2 | {"model_type": "qwen2", "tie_word_embeddings": True}
QWEN3 = QWEN2 | {"model_type": "qwen3", "head_dim": 64}
GEMMA2 = GEMMA | {"model_type": "gemma2"}
PHI3 = LLAMA2 | {"model_type": "phi3"}
MISTRAL = LLAMA2 | {"model_type": "mistral"}

JOB: dict[str, Any] = {
    "model": "small", "stack": "torchtune", "method": "full", "weights_dtype": "bfloat16", "autocast": None,
    "seq_len": 256, "micro_batch": 2, "optimizer": "adamw_torch_fused", "max_grad_norm": 0.0,
    "gradient_checkpointing": False,
}  # fmt: skip
MLP = ["gate_proj", "up_proj", "down_proj"]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", *MLP, "lm_head"]
RECOMPUTED = {"gradient_checkpointing": True}
OFFLOADED = {"offload_activations": True}
IN_BACKWARD = {"optimizer_in_backward": True}
PACKED = {"data": {"packing": True}}
WHOLE = {"loss": "full"}
FLOAT32 = {"weights_dtype": "float32"}
COMPILED = {"compile": True, "seq_len": 512}


def lora(*targets: str, dropout: float = 0.0) -> dict[str, Any]:
    wanted = list(targets) or ["q_proj", "v_proj", "o_proj", *MLP]
    return {"method": "lora", "lora": {"rank": 8, "targets": wanted, "dropout": dropout, "adapter_dtype": "bfloat16"}}


def qlora(*targets: str) -> dict[str, Any]:
    return lora(*targets) | {"method": "qlora"}


def dora(*targets: str, dropout: float = 0.0) -> dict[str, Any]:
    adapted = lora(*targets, dropout=dropout)
    return adapted | {"lora": adapted["lora"] | {"dora": True}}


def case(config: dict[str, Any], *changes: dict[str, Any], release: str = "0.6") -> dict[str, Any]:
    job = dict(JOB)
    for change in changes:
        job |= change
    return {"config": config, "job": job, "release": release}


CASES: dict[str, dict[str, Any]] = {
    "full": case(LLAMA3),
    "full-0.4": case(LLAMA3, release="0.4"),
    "whole-loss": case(LLAMA3, WHOLE),
    "recomputed": case(LLAMA3, RECOMPUTED),
    "tied-recomputed": case(TIED, RECOMPUTED),
    "odd-length": case(LLAMA2, {"seq_len": 250}),
    "odd-length-0.4": case(LLAMA2, {"seq_len": 250}, release="0.4"),
    "float32": case(LLAMA3, FLOAT32),
    "float32-lora": case(LLAMA3, FLOAT32, lora(), RECOMPUTED),
    "lora": case(LLAMA3, lora()),
    "lora-recomputed-0.4": case(LLAMA3, lora(), RECOMPUTED, release="0.4"),
    "lora-accumulated": case(
        LLAMA3, lora(dropout=0.1), RECOMPUTED, {"grad_accum": 2, "max_grad_norm": 1.0, "optimizer": "adamw_torch"}
    ),
    "in-backward": case(LLAMA3, IN_BACKWARD),
    "in-backward-paged": case(TIED, IN_BACKWARD, RECOMPUTED, {"optimizer": "paged_adamw_8bit"}),
    "offloaded": case(LLAMA3, OFFLOADED),
    "offloaded-recomputed": case(LLAMA3, OFFLOADED, RECOMPUTED),
    "offloaded-accumulated": case(LLAMA3, OFFLOADED, WHOLE, {"grad_accum": 2}),
    "offloaded-lora": case(WIDE, OFFLOADED, lora("q_proj", "v_proj")),
    "offloaded-lora-0.4": case(LLAMA3, OFFLOADED, lora(), release="0.4"),
    "qlora": case(LLAMA3, qlora()),
    "qlora-offloaded": case(WIDE, OFFLOADED, RECOMPUTED, qlora("q_proj", "v_proj")),
    "qlora-qwen2": case(QWEN2, RECOMPUTED, qlora()),
    "gemma": case(GEMMA),
    "gemma-lora": case(GEMMA, RECOMPUTED, lora()),
    "qwen2": case(QWEN2),
    "qwen2-lora": case(QWEN2, RECOMPUTED, lora()),
    "phi3": case(PHI3),
    "mistral-lora": case(MISTRAL, RECOMPUTED, lora("q_proj", "k_proj", "lm_head")),
    "gemma2": case(GEMMA2),
    "gemma2-lora": case(GEMMA2, RECOMPUTED, lora()),
    "gemma2-odd-length": case(GEMMA2, WHOLE, {"seq_len": 250}),
    "dora": case(LLAMA3, dora(dropout=0.1)),
    "dora-recomputed": case(LLAMA3, RECOMPUTED, dora("q_proj", "v_proj", "lm_head")),
    "full-0.7": case(LLAMA3, release="0.7"),
    "tied-recomputed-0.7": case(TIED, RECOMPUTED, release="0.7"),
    "whole-loss-0.7": case(LLAMA3, WHOLE, release="0.7"),
    "odd-length-0.7": case(LLAMA2, {"seq_len": 251}, release="0.7"),
    "lora-accumulated-0.7": case(
        LLAMA3, lora(dropout=0.1), RECOMPUTED, {"grad_accum": 2, "max_grad_norm": 1.0, "optimizer": "adamw_torch"},
        release="0.7",
    ),
    "in-backward-0.7": case(LLAMA3, IN_BACKWARD, RECOMPUTED, release="0.7"),
    "qlora-0.7": case(LLAMA3, qlora(), RECOMPUTED, release="0.7"),
    "qwen3-0.7": case(QWEN3, release="0.7"),
    "qwen3-lora-0.7": case(QWEN3, RECOMPUTED, lora(), release="0.7"),
    "gemma2-0.7": case(GEMMA2, RECOMPUTED, release="0.7"),
    "full-0.1": case(LLAMA2, WHOLE, release="0.1"),
    "lora-0.1": case(
        LLAMA2, WHOLE, RECOMPUTED, lora("q_proj", "v_proj"), {"grad_accum": 2, "optimizer": "adamw_torch"},
        release="0.1",
    ),
    "all-lora-0.1": case(
        LLAMA2 | {"num_key_value_heads": 8}, WHOLE, RECOMPUTED, lora(*ALL),
        {"grad_accum": 2, "optimizer": "adamw_torch"}, release="0.1",
    ),
}  # fmt: skip
"""Event for event."""

PACKED_CASES: dict[str, dict[str, Any]] = {
    "packed-recomputed": case(LLAMA3, PACKED, RECOMPUTED),
    "packed-whole-0.4": case(LLAMA3, PACKED, WHOLE, release="0.4"),
    "packed-0.7": case(LLAMA3, PACKED, RECOMPUTED, release="0.7"),
    "packed-ladder": case(TIED, PACKED, RECOMPUTED, IN_BACKWARD, OFFLOADED),
    "packed-lora-0.4": case(LLAMA3, PACKED, RECOMPUTED, OFFLOADED, lora(), release="0.4"),
}
"""Flex attention: the second step, since the first one times kernels, and blocks of more than 512 bytes."""

LARGER = LLAMA3 | {
    "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
COMPILED_CASES: dict[str, dict[str, Any]] = {
    "compiled": case(LARGER, COMPILED, release="0.4"),
    "compiled-recomputed": case(LARGER, COMPILED, RECOMPUTED, release="0.4"),
    "compiled-lora": case(LARGER, COMPILED, lora(), release="0.4"),
    "compiled-lora-recomputed": case(LARGER, COMPILED, lora(), RECOMPUTED, release="0.4"),
    "compiled-packed": case(LARGER, COMPILED, PACKED, release="0.4"),
    "compiled-packed-recomputed": case(LARGER, COMPILED, PACKED, RECOMPUTED, release="0.4"),
    "compiled-packed-in-backward": case(LARGER, COMPILED, PACKED, RECOMPUTED, IN_BACKWARD, release="0.4"),
    "compiled-packed-offloaded": case(
        LARGER, COMPILED, PACKED, RECOMPUTED, IN_BACKWARD, OFFLOADED, release="0.4"
    ),
    "compiled-packed-lora": case(LARGER, COMPILED, PACKED, RECOMPUTED, lora(), release="0.4"),
    "compiled-newest": case(LARGER, COMPILED),
    "compiled-0.7": case(LARGER, COMPILED, RECOMPUTED, release="0.7"),
}  # fmt: skip
"""What the second step holds when its forward pass ends, and at most."""


def job_of(case: dict[str, Any]) -> dict[str, Any]:
    """For tunecast."""
    return case["job"] if case["release"] == "0.6" else case["job"] | {"stack_version": case["release"]}
