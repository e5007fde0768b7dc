"""Quantised weights and PEFT's variants of LoRA: formats, double quantisation, `prepare_kbit`, DoRA, adapters' dtypes.

512 tokens take bitsandbytes' fused 4-bit kernel for the gate and up projections and a dequantised copy for the others;
2,048 take copies everywhere. The wide initialisation makes some columns outliers of LLM.int8.
"""

from __future__ import annotations

from itertools import product
from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 2048, "tie_word_embeddings": False,
    "initializer_range": 0.06,
}  # fmt: skip
BIASED = LLAMA | {"attention_bias": True, "mlp_bias": True}
ODD = LLAMA | {"intermediate_size": 616, "tie_word_embeddings": True}
"""An inner width that is no multiple of a 64-value block."""
QWEN: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 2048, "tie_word_embeddings": True,
    "initializer_range": 0.06,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 256, "n_head": 8, "n_layer": 2, "n_positions": 512, "vocab_size": 2048,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
"""Its layers are no linear layers to whoever quantises, and linear ones, turned round, to PEFT."""
ALL: dict[str, Any] = {"rank": 16, "targets": "all-linear", "dropout": 0.0}
FEW: dict[str, Any] = {"rank": 8, "targets": ["o_proj", "up_proj"]}
DORA: dict[str, Any] = ALL | {"dora": True}
PLAIN: dict[str, Any] = {"autocast": None, "prepare": False}


def qlora(form: str = "nf4", double: bool = False, prepare: bool = True, **values: Any) -> dict[str, Any]:
    quantization = {"format": form, "double_quant": double, "prepare_kbit": prepare}
    return {"method": "qlora", "lora": ALL, "quantization": quantization} | values


def lora(method: str = "lora", **settings: Any) -> dict[str, Any]:
    return {"method": method, "lora": ALL | settings}


def named(name: str, autocast: str | None, recomputed: bool, prepare: bool = False) -> str:
    parts = (name, "prepared" * prepare, "autocast" * bool(autocast), "recomputed" * recomputed)
    return "-".join(part for part in parts if part)


MODES = list(product((None, "bfloat16"), (False, True)))
"""autocast x recomputation"""
EVERY_MODE = [
    *(
        (
            named(form, autocast, recomputed, prepare),
            qlora(form, False, prepare, autocast=autocast, gradient_checkpointing=recomputed),
            LLAMA,
        )
        for form, prepare, (autocast, recomputed) in product(("nf4", "int8"), (False, True), MODES)
    ),
    *(
        (named("dora", *mode), lora(dora=True) | {"autocast": mode[0], "gradient_checkpointing": mode[1]}, LLAMA)
        for mode in MODES
    ),
]

CASES: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    *EVERY_MODE,
    ("nf4-double", qlora(double=True, prepare=False, autocast=None), BIASED),
    ("nf4-double-prepared", qlora(double=True, autocast=None, gradient_checkpointing=True), BIASED),
    ("nf4-double-prepared-autocast", qlora(double=True), BIASED),
    ("nf4-double-autocast-recomputed", qlora(double=True, prepare=False, gradient_checkpointing=True), BIASED),
    ("int8-biased", qlora("int8", prepare=False, autocast=None, gradient_checkpointing=True), BIASED),
    ("int8-biased-prepared-autocast", qlora("int8"), BIASED),
    ("fp4", qlora("fp4"), LLAMA),
    ("fp4-double-recomputed", qlora("fp4", True, gradient_checkpointing=True), QWEN),
    ("nf4-qwen", qlora(double=True), QWEN),
    ("int8-qwen", qlora("int8", gradient_checkpointing=True), QWEN),
    ("nf4-odd", qlora(double=True), ODD),
    ("int8-odd", qlora("int8"), ODD),
    ("nf4-long", qlora(double=True, seq_len=1024), BIASED),
    ("nf4-short", qlora(seq_len=3, micro_batch=1), LLAMA),
    ("nf4-fp32", qlora(weights_dtype="float32"), BIASED),
    ("nf4-fp32-plain", qlora(weights_dtype="float32", autocast=None), LLAMA),
    ("nf4-fp16", qlora(weights_dtype="float16", **PLAIN), LLAMA),
    ("nf4-fp16-autocast", qlora(weights_dtype="float16", prepare=False), LLAMA),
    ("int8-fp16", qlora("int8", weights_dtype="float16", **PLAIN), BIASED),
    ("int8-fp32", qlora("int8", weights_dtype="float32"), BIASED),
    ("nf4-few", qlora(lora={"rank": 8, "dropout": 0.05}), LLAMA),
    ("nf4-few-recomputed", qlora(prepare=False, lora=FEW, gradient_checkpointing=True), BIASED),
    ("int8-attention", qlora("int8", lora={"rank": 8, "targets": "attention", "dropout": 0.1}), LLAMA),
    ("nf4-bf16-adapters", qlora(lora=ALL | {"adapter_dtype": "bfloat16"}), LLAMA),
    ("nf4-bf16-adapters-plain", qlora(lora=ALL | {"adapter_dtype": "bfloat16"}, autocast=None), LLAMA),
    ("int8-bf16-adapters", qlora("int8", lora=ALL | {"adapter_dtype": "bfloat16"}, autocast=None), LLAMA),
    ("nf4-accumulated", qlora(grad_accum=2), LLAMA),
    ("int8-accumulated", qlora("int8", grad_accum=2, gradient_checkpointing=True), LLAMA),
    ("nf4-lengths", qlora(double=True, lengths=[192, 256, 128]), LLAMA),
    ("bf16-adapters", lora(adapter_dtype="bfloat16", dropout=0.1), BIASED),
    ("bf16-adapters-plain", lora(adapter_dtype="bfloat16") | {"autocast": None}, BIASED),
    ("rslora", lora(rslora=True), LLAMA),
    ("usual-targets", {"method": "lora", "lora": {"rank": 8}}, QWEN),
    ("head-too", {"method": "lora", "lora": {"rank": 8, "targets": ["q_proj", "lm_head"]}}, LLAMA),
    ("dora-dropout", lora(dora=True, dropout=0.1), BIASED),
    ("dora-dropout-recomputed", lora(dora=True, dropout=0.1) | {"gradient_checkpointing": True}, BIASED),
    ("dora-bf16", lora(dora=True, adapter_dtype="bfloat16"), BIASED),
    ("dora-bf16-plain", lora(dora=True, adapter_dtype="bfloat16") | {"autocast": None}, QWEN),
    ("dora-fp16", lora(dora=True) | {"autocast": None, "weights_dtype": "float16"}, LLAMA),
    ("dora-fp32", lora(dora=True) | {"weights_dtype": "float32"}, LLAMA),
    ("dora-gpt2", lora(dora=True), GPT2),
    ("dora-gpt2-dropout-recomputed", lora(dora=True, dropout=0.1) | {"gradient_checkpointing": True}, GPT2),
    ("nf4-gpt2", qlora(), GPT2),
    ("dora-nf4", qlora(double=True, lora=DORA), BIASED),
    ("dora-nf4-plain", qlora(**PLAIN, lora=DORA), LLAMA),
    ("dora-nf4-recomputed", qlora(lora=DORA, gradient_checkpointing=True), LLAMA),
    ("dora-nf4-dropout", qlora(lora=ALL | {"dora": True, "dropout": 0.1}, gradient_checkpointing=True), BIASED),
    ("dora-nf4-fp16", qlora(**PLAIN, lora=DORA, weights_dtype="float16"), LLAMA),
    ("dora-int8", qlora("int8", lora=DORA), BIASED),
    ("dora-int8-plain-recomputed", qlora("int8", **PLAIN, lora=DORA, gradient_checkpointing=True), LLAMA),
]
