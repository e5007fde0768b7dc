"""The small runs of SFTTrainer and Trainer that `make.py` traces, and the job each of them is to tunecast."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 320, "intermediate_size": 768,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 40, "vocab_size": 2048,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "use_cache": False,
}  # fmt: skip
WINDOW = {"architectures": ["MistralForCausalLM"], "sliding_window": 128}
TARGETS = ["q_proj", "v_proj"]
LENGTH, BATCH, RANK, STEPS = 256, 2, 16, 3
PARTS = (100, 156)
"""Samples that fill a row together."""


def case(release: str, method: str, **values: Any) -> Case:
    """`release` is TRL's, or `trainer` for transformers' own."""
    return {
        "release": release, "method": method, "weights_dtype": "bfloat16", "autocast": "bfloat16", "recomputed": False,
        "accumulated": 1, "packed": False, "strategy": "bfd", "rows": BATCH, **values,
        "config": {**CONFIG, "vocab_size": values.pop("vocabulary", CONFIG["vocab_size"]), **values.get("config", {})},
    }  # fmt: skip


CASES: dict[str, Case] = {
    "trl lora": case("1.16", "lora"),
    "trl lora, accumulated, no autocast": case("1.16", "lora", recomputed=True, accumulated=2, autocast=None),
    "trl full, two tiles of words": case("1.16", "full", weights_dtype="float32", vocabulary=40000),
    "trl qlora": case("1.16", "qlora", recomputed=True),
    "trl packed lora": case("1.16", "lora", packed=True),
    "trl packed qlora, recomputed": case("1.16", "qlora", packed=True, recomputed=True),
    "trl packed full, recomputed": case("1.16", "full", packed=True, recomputed=True, weights_dtype="float32"),
    "trl packed lora, one row": case("1.16", "lora", packed=True, rows=1),
    "trl packed lora, accumulated": case("1.16", "lora", packed=True, accumulated=2),
    "trl packed lora, window": case("1.16", "lora", packed=True, config={"model_type": "mistral", **WINDOW}),
    "trl cut lora": case("1.16", "lora", packed=True, strategy="wrapped", recomputed=True),
    "trainer lora": case("trainer", "lora"),
    "trainer full": case("trainer", "full"),
}


def job_of(case: Case) -> dict[str, Any]:
    trainer = case["release"] == "trainer"
    return {
        "model": "small", "method": case["method"], "stack": "axolotl" if trainer else "trl",
        "weights_dtype": case["weights_dtype"], "autocast": case["autocast"], "seq_len": LENGTH,
        "micro_batch": case["rows"],
        "grad_accum": case["accumulated"], "gradient_checkpointing": case["recomputed"], "optimizer": "adamw_torch",
        "max_grad_norm": 1.0, **({} if trainer else {"trl_version": case["release"]}),
        "data": {"packing": case["packed"], "packing_strategy": case["strategy"]},
        **({} if case["method"] == "full" else {"lora": {"rank": RANK, "dropout": 0.0, "targets": TARGETS}}),
        **({"quantization": {"format": "nf4"}} if case["method"] == "qlora" else {}),
    }  # fmt: skip
