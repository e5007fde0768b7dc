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
ALL: dict[str, Any] = {"rank": 16, "targets": "all-linear", "dropout": 0.0}


def qlora(form: str = "nf4", double: bool = False, prepare: bool = True, **values: Any) -> dict[str, Any]:
    quantization = {"format": form, "double_quant": double, "prepare_kbit": prepare}
    return {"method": "qlora", "lora": ALL, "quantization": quantization} | values


def lora(method: str = "lora", **settings: Any) -> dict[str, Any]:
    return {"method": method, "lora": ALL | settings}


CASES: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    *(
        (
            "-".join(
                [name, "prepared" * prepare, "autocast" * bool(autocast), "recomputed" * recomputed]
            ),
            qlora(form, double, prepare, autocast=autocast, gradient_checkpointing=recomputed),
            config,
        )
        for (name, form, double, config), prepare, autocast, recomputed in product(
            (("nf4", "nf4", False, LLAMA), ("nf4-double", "nf4", True, BIASED), ("int8", "int8", False, LLAMA),
             ("int8-biased", "int8", False, BIASED)),
            (False, True), (None, "bfloat16"), (False, True),
        )  # fmt: skip
    ),
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
    ("nf4-fp16", qlora(weights_dtype="float16", autocast=None, prepare=False), LLAMA),
    ("nf4-fp16-autocast", qlora(weights_dtype="float16", prepare=False), LLAMA),
    ("int8-fp16", qlora("int8", weights_dtype="float16", autocast=None, prepare=False), BIASED),
    ("int8-fp32", qlora("int8", weights_dtype="float32"), BIASED),
    ("nf4-few", qlora(lora={"rank": 8, "dropout": 0.05}), LLAMA),
    ("nf4-few-recomputed", qlora(prepare=False, lora={"rank": 8, "targets": ["o_proj", "up_proj"]},
                                 gradient_checkpointing=True), BIASED),
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
    *(
        (
            "-".join(["dora", "autocast" * bool(autocast), "recomputed" * recomputed]),
            lora(dora=True) | {"autocast": autocast, "gradient_checkpointing": recomputed},
            LLAMA,
        )
        for autocast, recomputed in product((None, "bfloat16"), (False, True))
    ),
    ("dora-dropout", lora(dora=True, dropout=0.1), BIASED),
    ("dora-dropout-recomputed", lora(dora=True, dropout=0.1) | {"gradient_checkpointing": True}, BIASED),
    ("dora-bf16", lora(dora=True, adapter_dtype="bfloat16"), BIASED),
    ("dora-bf16-plain", lora(dora=True, adapter_dtype="bfloat16") | {"autocast": None}, QWEN),
    ("dora-fp16", lora(dora=True) | {"autocast": None, "weights_dtype": "float16"}, LLAMA),
    ("dora-fp32", lora(dora=True) | {"weights_dtype": "float32"}, LLAMA),
    ("dora-nf4", qlora(double=True, lora=ALL | {"dora": True}), BIASED),
    ("dora-nf4-plain", qlora(prepare=False, lora=ALL | {"dora": True}, autocast=None), LLAMA),
    ("dora-nf4-recomputed", qlora(lora=ALL | {"dora": True}, gradient_checkpointing=True), LLAMA),
    ("dora-nf4-dropout", qlora(lora=ALL | {"dora": True, "dropout": 0.1}, gradient_checkpointing=True), BIASED),
    ("dora-nf4-fp16", qlora(prepare=False, lora=ALL | {"dora": True}, autocast=None, weights_dtype="float16"), LLAMA),
    ("dora-int8", qlora("int8", lora=ALL | {"dora": True}), BIASED),
    ("dora-int8-plain-recomputed",
     qlora("int8", prepare=False, lora=ALL | {"dora": True}, autocast=None, gradient_checkpointing=True), LLAMA),
]  # fmt: skip
