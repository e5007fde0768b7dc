"""What program.py is traced with: two steps of three layers, sizes that tell tensors apart."""

from __future__ import annotations

from typing import Any

STEPS = 2
LLAMA = {
    "model_type": "llama", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
JOB: dict[str, Any] = {
    "model": "small", "stack": "torchtitan", "seq_len": 256, "micro_batch": 2, "optimizer": "adamw_torch_fused",
    "gradient_checkpointing": False,
}  # fmt: skip
SELECTIVE = {"gradient_checkpointing": True, "recompute": "selective"}
WHOLE = {"gradient_checkpointing": True, "recompute": "all"}
COMPILED = {"compile": True, "seq_len": 512}
FSDP = {"ranks": 8}
CONTEXT = {"ranks": 8, "context": 4}
TENSOR = {"ranks": 8, "tensor": 2}
FOREACH = {"optimizer": "adamw_torch"}


LARGER = LLAMA | {
    "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip


AS_TRACED = {"0.1": "2025.7", "0.2": "0.2"}
"""The code of 0.1, on a torch that has a kernel for its norms."""


WORDS = LARGER | {"vocab_size": 32768}
"""The loss is what most is held in."""


def case(*changes: dict[str, Any], release: str = "0.1", config: dict[str, Any] | None = None) -> dict[str, Any]:
    job = dict(JOB)
    for change in changes:
        job |= change
    config = config or (LARGER if job.get("compile") else LLAMA)
    return {"config": config, "job": job | {"stack_version": AS_TRACED[release]}, "release": release}


CASES: dict[str, dict[str, Any]] = {
    "alone": case(),
    "alone-selective": case(SELECTIVE, FOREACH),
    "alone-whole": case(WHOLE),
    "alone-0.2": case(SELECTIVE, release="0.2"),
    "fsdp": case(FSDP),
    "fsdp-selective": case(FSDP, SELECTIVE),
    "fsdp-whole": case(FSDP, WHOLE, FOREACH),
    "fsdp-0.2": case(FSDP, SELECTIVE, release="0.2"),
    "context": case(CONTEXT),
    "tensor": case(TENSOR),
    "tensor-selective": case(TENSOR, SELECTIVE),
    "tensor-whole-0.2": case(TENSOR, WHOLE, release="0.2"),
}
"""Event for event."""

COMPILED_CASES: dict[str, dict[str, Any]] = {
    "compiled": case(COMPILED),
    "compiled-selective": case(COMPILED, SELECTIVE),
    "compiled-whole": case(COMPILED, WHOLE),
    "compiled-tensor-selective": case(COMPILED, TENSOR, SELECTIVE),
    "compiled-tensor-whole-0.2": case(COMPILED, TENSOR, WHOLE, release="0.2"),
    "compiled-tensor-words": case(COMPILED, TENSOR, WHOLE, config=WORDS),
    "compiled-fsdp-words": case(COMPILED, FSDP, WHOLE, config=WORDS),
    "compiled-fsdp": case(COMPILED, FSDP),
    "compiled-fsdp-selective": case(COMPILED, FSDP, SELECTIVE),
    "compiled-fsdp-whole-0.2": case(COMPILED, FSDP, WHOLE, release="0.2"),
}
"""What the second step holds when its forward pass ends, and at most."""
