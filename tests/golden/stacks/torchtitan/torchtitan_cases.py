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
EXPERTS = {"expert": 4}
FOREACH = {"optimizer": "adamw_torch"}


LARGER = LLAMA | {
    "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip


AS_TRACED = {"0.1": "2025.7", "0.2": "0.2", "0.2.2": "2026.2", "0.3": "0.3"}
"""The code of 0.1, on a torch that has a kernel for its norms."""
REWRITTEN = "0.3"


MIXTURE = LLAMA | {
    "model_type": "qwen3_moe", "head_dim": 32, "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 192, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
LATENT = LLAMA | {
    "model_type": "deepseek_v3", "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4,
    "topk_group": 2, "scoring_func": "sigmoid", "norm_topk_prob": True, "moe_intermediate_size": 192,
    "first_k_dense_replace": 1, "q_lora_rank": 96, "kv_lora_rank": 80, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "num_key_value_heads": 8,
}  # fmt: skip
LITE = LATENT | {
    "n_group": 1, "topk_group": 1, "scoring_func": "softmax", "norm_topk_prob": False, "q_lora_rank": None,
    "n_shared_experts": 2,
}  # fmt: skip


INTERLEAVED = LLAMA | {
    "model_type": "llama4_text", "num_local_experts": 8, "num_experts_per_tok": 1, "intermediate_size": 512,
    "intermediate_size_mlp": 768, "interleave_moe_layer_step": 2,
}  # fmt: skip


WORDS = LARGER | {"vocab_size": 32768}
"""The loss is what most is held in."""


def case(*changes: dict[str, Any], release: str = "0.1", config: dict[str, Any] | None = None) -> dict[str, Any]:
    job = dict(JOB)
    for change in changes:
        job |= change
    config = config or (LARGER if job.get("compile") else LLAMA)
    job["stack_version"] = AS_TRACED[release]
    if release == REWRITTEN:
        job["torch_version"] = "2.15.0"
    return {"config": config, "job": job, "release": release}


def rewritten(*changes: dict[str, Any], **config: Any) -> dict[str, Any]:
    return case(*changes, release=REWRITTEN, config=LLAMA | config)


def mixture(*changes: dict[str, Any], config: dict[str, Any] = MIXTURE) -> dict[str, Any]:
    return case(*changes, release="0.2.2", config=config)


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
    "alone-0.3": rewritten(),
    "alone-one-row-0.3": rewritten({"micro_batch": 1}, SELECTIVE, FOREACH),
    "fsdp-0.3": rewritten(FSDP),
    "fsdp-selective-0.3": rewritten(FSDP, SELECTIVE),
    "fsdp-whole-0.3": rewritten(FSDP, WHOLE, {"grad_accum": 2}),
    "fsdp-float32-0.3": rewritten(FSDP, {"autocast": None}),
    "fsdp-heads-0.3": rewritten(FSDP, num_key_value_heads=8),
    "fsdp-qwen-0.3": rewritten(FSDP, SELECTIVE, model_type="qwen3", head_dim=48),
    "hsdp-0.3": rewritten(FSDP, {"replicate": 2}, SELECTIVE),
    "experts-alone": mixture(),
    "experts-fsdp": mixture(FSDP),
    "experts-4": mixture(FSDP, EXPERTS),
    "experts-4-selective": mixture(FSDP, EXPERTS, SELECTIVE),
    "experts-4-whole": mixture(FSDP, EXPERTS, WHOLE, FOREACH),
    "experts-8": mixture({"ranks": 8, "expert": 8}),
    "latent-4": mixture(FSDP, EXPERTS, config=LATENT),
    "latent-4-whole": mixture(FSDP, EXPERTS, WHOLE, config=LATENT),
    "latent-4-selective": mixture(FSDP, EXPERTS, SELECTIVE, config=LITE),
    "latent-fsdp": mixture(FSDP, config=LITE),
    "interleaved-fsdp": mixture(FSDP, config=INTERLEAVED),
    "interleaved-4": mixture(FSDP, EXPERTS, config=INTERLEAVED),
    "interleaved-4-whole": mixture(FSDP, EXPERTS, WHOLE, config=INTERLEAVED),
    "experts-columns": mixture({"ranks": 64, "expert": 8}),
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
