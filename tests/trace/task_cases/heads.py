"""Small runs of trainers of heads in the vocabulary's place."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 320, "intermediate_size": 768,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 40, "vocab_size": 2048,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3 = {**CONFIG, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True}
GEMMA3 = {
    **CONFIG, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "tie_word_embeddings": True,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 40,
}  # fmt: skip
LENGTH, ROWS, RANK, STEPS = 256, 2, 16, 2
TARGETS = ["q_proj", "v_proj"]


def case(task: str, method: str, labels: int = 1, **values: Any) -> Case:
    made: Case = {
        "program": "heads", "task": task, "method": method, "labels": labels, "weights_dtype": "bfloat16",
        "autocast": "bfloat16", "recomputed": False, "accumulated": 1, "rows": ROWS, "steps": STEPS, "rank": RANK,
        "targets": TARGETS, "length": LENGTH, "config": CONFIG, "stack": "trl", **values,
    }  # fmt: skip
    return made | {"job": job_of(made)}


def job_of(case: Case) -> dict[str, Any]:
    return {
        "model": "small", "task": case["task"], "method": case["method"], "stack": case["stack"],
        "weights_dtype": case["weights_dtype"], "autocast": case["autocast"], "seq_len": case["length"],
        "micro_batch": case["rows"], "grad_accum": case["accumulated"], "gradient_checkpointing": case["recomputed"],
        "optimizer": "adamw_torch", "max_grad_norm": 1.0, "head": {"labels": case["labels"]},
        **({} if case["method"] == "full" else {"lora": {"rank": RANK, "dropout": 0.0, "targets": TARGETS}}),
        **({"quantization": {"format": "nf4"}} if case["method"] == "qlora" else {}),
    }  # fmt: skip


CASES: dict[str, Case] = {
    "reward lora": case("reward", "lora"),
    "reward full": case("reward", "full"),
    "reward qlora": case("reward", "qlora"),
    "classify lora": case("classify", "lora", 5, stack="transformers"),
    "classify full": case("classify", "full", 5, stack="transformers"),
    "classify tied, recomputed": case(
        "classify", "lora", 5, stack="transformers", config=QWEN3, recomputed=True, accumulated=3
    ),
    "prm lora": case("prm", "lora", 5),
    "prm full": case("prm", "full", 2),
    "reward gemma, full, recomputed": case("reward", "full", config=GEMMA3, recomputed=True),
}
