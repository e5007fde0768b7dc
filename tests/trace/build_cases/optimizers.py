"""Every optimizer the closed form knows, on a two-layer Llama: full and LoRA, dtypes, clipping or none.

Sizes are chosen on both sides of bitsandbytes' limits: norms and small adapters below 4,096 elements (fp32 state),
projections above 100,000 (paged state leaves the card).
"""

from __future__ import annotations

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048,
    "tie_word_embeddings": False, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip
TIED = LLAMA | {"tie_word_embeddings": True}
ANY_DTYPE = (
    "adamw_torch", "adamw_torch_fused", "adamw_torch_single", "adam_torch", "sgd", "adagrad", "rmsprop", "adafactor",
    "adamw_8bit", "lion_8bit",
    "lion_32bit", "paged_adamw_8bit", "paged_adamw_32bit", "paged_lion_8bit", "paged_lion_32bit", "ademamix",
    "ademamix_8bit", "paged_ademamix_8bit", "paged_ademamix_32bit",
)  # fmt: skip
NOT_BFLOAT16 = ("rmsprop_bnb", "rmsprop_bnb_8bit")
"""bitsandbytes has no such kernel for small bfloat16 tensors."""


def job(optimizer: str, **values: Any) -> dict[str, Any]:
    base = {"model": "llama-3.2-1b", "method": "full", "weights_dtype": "bfloat16", "autocast": None}
    return base | {"seq_len": 256, "micro_batch": 2, "gradient_checkpointing": False, "optimizer": optimizer} | values


def lora(optimizer: str, adapter_dtype: str, **values: Any) -> dict[str, Any]:
    adapters = {"rank": 24, "targets": "all-linear", "adapter_dtype": adapter_dtype}
    return job(optimizer, method="lora", lora=adapters, **values)


CASES: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    *((f"{name}-full", job(name), LLAMA) for name in ANY_DTYPE),
    *(
        (f"{name}-full-float32", job(name, weights_dtype="float32", autocast="bfloat16"), LLAMA)
        for name in ("adamw_torch", "adafactor", *NOT_BFLOAT16)
    ),
    *(
        (f"{name}-lora", lora(name, "float32", autocast="bfloat16"), LLAMA)
        for name in ("adamw_torch", "adafactor", "paged_adamw_8bit", "lion_8bit", "ademamix_8bit", "rmsprop_bnb_8bit")
    ),
    *(
        (f"{name}-lora-bfloat16", lora(name, "bfloat16", gradient_checkpointing=True), LLAMA)
        for name in ("adafactor", "adamw_8bit")
    ),
    ("adamw_torch-unclipped", job("adamw_torch", max_grad_norm=0.0), LLAMA),
    ("adamw_8bit-unclipped-float16", job("adamw_8bit", max_grad_norm=0.0, weights_dtype="float16"), LLAMA),
    ("adafactor-float16", job("adafactor", weights_dtype="float16"), LLAMA),
    ("adafactor-accumulated", job("adafactor", grad_accum=2), LLAMA),
    ("adamw_8bit-tied", job("adamw_8bit"), TIED),
    ("adafactor-lengths", job("adafactor", lengths=[128, 96, 128, 64]), TIED),
]
