"""Small runs of TRL's trainers of preferences."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 320, "intermediate_size": 768,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 40, "vocab_size": 2048,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "use_cache": False,
}  # fmt: skip
MISTRAL = {**CONFIG, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
"""Liger's kernels stay in the place of a family's classes: for those cases a family that no other case has."""
QWEN3 = {**CONFIG, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True}
GEMMA2 = {
    **CONFIG, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "tie_word_embeddings": True,
    "query_pre_attn_scalar": 40, "sliding_window": 128, "vocab_size": 40_000,
}  # fmt: skip
LENGTH, PROMPT, ROWS, RANK, STEPS = 272, 56, 2, 16, 2
TARGETS = ["q_proj", "v_proj"]


def case(task: str, method: str, **values: Any) -> Case:
    made: Case = {
        "program": "preference", "task": task, "method": method, "weights_dtype": "bfloat16", "autocast": "bfloat16",
        "recomputed": False, "accumulated": 1, "rows": ROWS, "steps": STEPS, "rank": RANK, "targets": TARGETS,
        "length": LENGTH, "prompt": PROMPT, "config": CONFIG, "reference": None, "lora": {}, "kernels": [], **values,
    }  # fmt: skip
    return made | {"job": job_of(made)}


def job_of(case: Case) -> dict[str, Any]:
    lora = {"rank": RANK, "dropout": 0.0, "targets": TARGETS, **case["lora"]}
    return {
        "model": "small", "task": case["task"], "method": case["method"], "stack": "trl",
        "weights_dtype": case["weights_dtype"], "autocast": case["autocast"], "seq_len": case["length"],
        "micro_batch": case["rows"], "grad_accum": case["accumulated"], "gradient_checkpointing": case["recomputed"],
        "optimizer": "adamw_torch", "max_grad_norm": 1.0, "kernels": case["kernels"],
        "preference": {"prompt_length": case["prompt"], "reference": case["reference"]},
        **({} if case["method"] == "full" else {"lora": lora}),
        **({"quantization": {"format": "nf4"}} if case["method"] == "qlora" else {}),
    }  # fmt: skip


PLAIN = {"weights_dtype": "float32", "autocast": None}
CASES: dict[str, Case] = {
    "dpo lora": case("dpo", "lora"),
    "dpo lora, recomputed, accumulated, in float32": case("dpo", "lora", recomputed=True, accumulated=4, **PLAIN),
    "dpo qlora": case("dpo", "qlora", recomputed=True),
    "dpo lora, dora with dropout": case("dpo", "lora", lora={"dora": True, "dropout": 0.1}),
    "dpo full": case("dpo", "full"),
    "dpo full, weights in float32, liger": case(
        "dpo", "full", weights_dtype="float32", kernels=["liger"], prompt=0, config=MISTRAL
    ),
    "dpo full, precomputed, gemma2": case("dpo", "full", reference="precomputed", config=GEMMA2),
    "dpo lora against a second model, qwen3": case("dpo", "lora", reference="model", config=QWEN3),
    "kto lora, recomputed": case("kto", "lora", rows=4, recomputed=True),
    "kto full, accumulated": case("kto", "full", rows=4, accumulated=3),
    "orpo lora": case("orpo", "lora", recomputed=True),
    "orpo full, in float32": case("orpo", "full", **PLAIN),
    "cpo qlora": case("cpo", "qlora", recomputed=True),
    "cpo full, accumulated, liger": case("cpo", "full", accumulated=2, kernels=["liger"], config=MISTRAL),
    "simpo lora": case("simpo", "lora"),
}
