"""The small runs of NeMo Automodel's modules that `make.py` traces, and the job each of them is to tunecast."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
CONFIG = {
    "model_type": "llama", "hidden_size": 320, "intermediate_size": 768, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 40, "vocab_size": 2048,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
MISTRAL = {"model_type": "mistral", "sliding_window": None}
LENGTH, BATCH, STEPS = 256, 2, 3
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OWN_MODELS = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def case(method: str, **values: Any) -> Case:
    config = CONFIG | values.pop("config", {})
    plain = {"weights_dtype": "bfloat16", "ranks": 1, "recomputed": False, "accumulated": 1, "dropout": 0.0}
    return {"method": method, "config": config, **plain, **values}


CASES: dict[str, Case] = {
    "llama": case("full"),
    "llama lora": case("lora"),
    "llama lora, dropout": case("lora", dropout=0.1),
    "llama lora, recomputed": case("lora", recomputed=True),
    "qwen2, recomputed": case("full", config={"model_type": "qwen2"}, recomputed=True),
    "qwen3 lora": case("lora", config={"model_type": "qwen3"}),
    "mistral": case("full", config=MISTRAL),
    "mistral lora, recomputed": case("lora", config=MISTRAL, recomputed=True),
    "eight, llama": case("full", ranks=8),
    "eight, llama lora, recomputed": case("lora", ranks=8, recomputed=True),
    "eight, qwen3, recomputed": case("full", ranks=8, config={"model_type": "qwen3"}, recomputed=True),
    "eight, mistral": case("full", ranks=8, config=MISTRAL),
    "eight, mistral, accumulated": case("full", ranks=8, config=MISTRAL, accumulated=2, weights_dtype="float32"),
    "eight, mistral lora, recomputed": case("lora", ranks=8, config=MISTRAL, recomputed=True),
}


def job_of(case: Case) -> dict[str, Any]:
    """What it does not say, Automodel's defaults do."""
    adapters = {"lora": {"targets": TARGETS, "dropout": case["dropout"]}} if case["method"] != "full" else {}
    return {
        "model": "small", "stack": "automodel", "method": case["method"], "weights_dtype": case["weights_dtype"],
        "seq_len": LENGTH, "micro_batch": BATCH, "grad_accum": case["accumulated"],
        "gradient_checkpointing": case["recomputed"], "hardware": {"gpus": case["ranks"]}, **adapters,
    }  # fmt: skip
