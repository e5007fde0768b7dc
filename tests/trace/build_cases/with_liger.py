"""Liger's kernels. Last of the files by name: Liger replaces functions of transformers' modules for good.

A vocabulary that is no multiple of the hidden size, and few tokens, so that the loss takes several chunks, the last
one short.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 2304, "tie_word_embeddings": False, "max_position_embeddings": 4096,
    "pad_token_id": 0,
}  # fmt: skip
GEMMA = SIZES | {"head_dim": 48, "tie_word_embeddings": True, "query_pre_attn_scalar": 48, "sliding_window": 128}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "mistral": SIZES | {"sliding_window": None},
    "qwen2": SIZES,
    "qwen3": SIZES | {"head_dim": 48},
    "smollm3": SIZES,
    "gemma": GEMMA,
    "gemma2": GEMMA | {"final_logit_softcapping": 30.0},
    "gemma3_text": GEMMA | {"layer_types": ["sliding_attention", "full_attention"]},
    "phi3": SIZES | {"sliding_window": None},
    "olmo2": SIZES,
}
ADAPTERS = {"rank": 8, "targets": "all-linear", "adapter_dtype": "float32", "dropout": 0.0}
TRAININGS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": None},
    "float32": {"method": "full", "weights_dtype": "float32", "gradient_checkpointing": True},
    "lora": {"method": "lora", "lora": ADAPTERS},
}
LLAMA_ALONE: dict[str, dict[str, Any]] = {
    "float32-without-autocast": {"method": "full", "weights_dtype": "float32", "autocast": None, "seq_len": 200},
    "checkpointed": {"method": "full", "autocast": None, "gradient_checkpointing": True},
    "accumulated": {"method": "full", "autocast": None, "grad_accum": 3, "micro_batch": 1, "seq_len": 333},
    "float16": {"method": "lora", "weights_dtype": "float16", "autocast": "float16", "lora": ADAPTERS},
    "qlora": {
        "method": "qlora", "quantization": {"format": "nf4"}, "lora": ADAPTERS, "gradient_checkpointing": True,
        "lengths": [256, 200, 256],
    },
}  # fmt: skip


def case(model: str, name: str, values: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return f"{model}-{name}", {"kernels": ["liger"], **values}, {"model_type": model, **MODELS[model]}


def part_case(model: str, training: str, *parts: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    named = {"kernels": [f"liger_{part}" for part in parts], **TRAININGS[training]}
    return f"{model}-{training}-{'+'.join(parts)}", named, {"model_type": model, **MODELS[model]}


PARTS = [
    *(part_case("llama", training, "fused_linear_cross_entropy") for training in TRAININGS),
    part_case("llama", "lora", "rms_norm"),
    part_case("llama", "float32", "rms_norm", "glu"),
    part_case("llama", "lora", "rms_norm", "glu", "fused_linear_cross_entropy"),
    part_case("qwen2", "lora", "glu"),
    part_case("qwen2", "float32", "glu", "fused_linear_cross_entropy"),
    part_case("mistral", "full", "rope"),
    part_case("gemma2", "lora", "glu"),
    part_case("phi3", "lora", "rope"),
    part_case("llama", "lora", "rope", "rms_norm", "glu"),
    *(part_case("llama", training, "rope", "rms_norm", "glu", "cross_entropy") for training in TRAININGS),
    part_case("gemma2", "float32", "rope", "rms_norm", "glu", "cross_entropy"),
]
"""Of one model those with more parts come later, and Liger's loss last: what one case has replaced stays replaced."""
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *PARTS,
    *(case("llama", name, values) for name, values in TRAININGS.items()),
    *(
        case(model, name, TRAININGS[name])
        for model in MODELS
        for name in ("float32", "lora")
        if model != "llama" and (model, name) != ("olmo2", "lora")  # a second OLMo 2 has other norms than the first
    ),
    *(case("llama", name, values) for name, values in LLAMA_ALONE.items()),
]
if find_spec("liger_kernel") is None:
    CASES = []
