"""The small programs `make.py` traces, and the job each of them is to tunecast.

A case is what `program.py` runs; `job_of` says the same in a job's words. All widths differ: sizes tell tensors apart.
"""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
WIDTHS = {
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 1024,
}  # fmt: skip
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]
LENGTH, BATCH, STEPS = 192, 2, 2


def case(release: str, method: str, *kernels: str, model: str = "mistral", **values: Any) -> Case:
    """`release` is transformers'; 4.45.2 ran with foak 0.4.0, 4.48.1 with 0.6.0. gptq is float16, all else bfloat16."""
    half = "float16" if method == "gptq" else "bfloat16"
    return {
        "release": release,
        "config": {"model_type": model, **WIDTHS, "vocab_size": values.pop("vocabulary", WIDTHS["vocab_size"])},
        "method": "qlora" if method in ("nf4", "gptq") else method,
        "format": method if method in ("nf4", "gptq") else None,
        "kernels": list(kernels),
        "weights_dtype": half,
        "autocast": half if method in ("nf4", "gptq") or release == "4.45.2" else None,
        "reentrant": True,
        "batch": BATCH,
        "length": LENGTH,
        **values,
    }


FOAK, LIGER = ("foak",), ("foak", "liger")
CASES: dict[str, Case] = {
    "full foak": case("4.48.1", "full", *FOAK),
    "lora foak": case("4.48.1", "lora", *FOAK),
    "lora foak kept": case("4.48.1", "lora", *FOAK, reentrant=None),
    "nf4 foak": case("4.48.1", "nf4", *FOAK),
    "nf4 foak kept": case("4.48.1", "nf4", *FOAK, reentrant=None),
    "nf4 foak not reentrant": case("4.48.1", "nf4", *FOAK, reentrant=False),
    "gptq": case("4.48.1", "gptq"),
    "gptq kept": case("4.48.1", "gptq", reentrant=None),
    "gptq not reentrant": case("4.48.1", "gptq", reentrant=False),
    "gptq foak": case("4.48.1", "gptq", *FOAK),
    "gptq foak kept": case("4.48.1", "gptq", *FOAK, reentrant=None),
    "gptq foak not reentrant": case("4.48.1", "gptq", *FOAK, reentrant=False),
    "llama lora foak liger": case("4.48.1", "lora", *LIGER, model="llama"),
    "old full foak": case("4.45.2", "full", *FOAK),
    "old full foak liger": case("4.45.2", "full", *LIGER),
    "old lora foak": case("4.45.2", "lora", *FOAK),
    "old llama lora foak liger": case("4.45.2", "lora", *LIGER, model="llama"),
    "old llama lora foak, a large vocabulary": case("4.45.2", "lora", *FOAK, model="llama", vocabulary=66048),
    "old nf4 foak liger": case("4.45.2", "nf4", *LIGER),
    "old llama nf4 foak": case("4.45.2", "nf4", *FOAK, model="llama"),
    "old gptq foak liger": case("4.45.2", "gptq", *LIGER),
    "old llama gptq foak": case("4.45.2", "gptq", *FOAK, model="llama"),
}


def job_of(case: Case) -> dict[str, Any]:
    values: dict[str, Any] = {
        "model": "small", "method": case["method"], "weights_dtype": case["weights_dtype"],
        "autocast": case["autocast"], "seq_len": case["length"], "micro_batch": case["batch"], "grad_accum": 1,
        "attention": "flash_attention_2", "kernels": case["kernels"], "optimizer": "adamw_torch", "max_grad_norm": 1.0,
        "gradient_checkpointing": case["reentrant"] is not None, "transformers_version": case["release"],
    }  # fmt: skip
    if case["reentrant"] is not None:
        values["checkpoint_reentrant"] = case["reentrant"]
    if case["method"] != "full":
        values["lora"] = {"rank": 8, "alpha": 16, "dropout": 0.1, "targets": PROJECTIONS}
    if case["format"] is not None:
        values["quantization"] = {"format": case["format"], "prepare_kbit": False}
        if case["format"] == "nf4":
            values["quantization"]["double_quant"] = True
    return values
