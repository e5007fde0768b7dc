"""Small runs of sentence-transformers' trainers: what task_cases/programs/embeddings.py asks for, and `job`: what it is
to tunecast."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 320, "intermediate_size": 768,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 40, "vocab_size": 2048,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
LENGTH, ROWS, RANK, STEPS = 256, 2, 16, 2
TARGETS = ["q_proj", "v_proj"]
RELEASES = {"transformers_version": "5.17.0", "torch_version": "2.13.0", "peft_version": "0.21.0"}


def case(task: str, method: str, **values: Any) -> Case:
    made: Case = {
        "program": "embeddings", "task": task, "method": method, "labels": 1, "weights_dtype": "bfloat16",
        "autocast": "bfloat16", "recomputed": False, "accumulated": 1, "rows": ROWS, "steps": STEPS, "rank": RANK,
        "targets": TARGETS, "length": LENGTH, "config": CONFIG, **values,
    }  # fmt: skip
    return made | {"job": job_of(made)}


def job_of(case: Case) -> dict[str, Any]:
    return {
        "model": "small", "task": case["task"], "method": case["method"], "stack": "trl", **RELEASES,
        "weights_dtype": case["weights_dtype"], "autocast": case["autocast"], "seq_len": case["length"],
        "micro_batch": case["rows"], "grad_accum": case["accumulated"], "gradient_checkpointing": case["recomputed"],
        "optimizer": "adamw_torch", "max_grad_norm": 1.0,
        **({} if case["method"] == "full" else {"lora": {"rank": RANK, "dropout": 0.0, "targets": TARGETS}}),
    }  # fmt: skip


CASES: dict[str, Case] = {
    "embed lora": case("embed", "lora"),
    "embed full, recomputed": case("embed", "full", recomputed=True),
    "rerank lora": case("rerank", "lora"),
}
