"""Small runs of TRL's trainers of students."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 320, "intermediate_size": 768,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 40, "vocab_size": 2048,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
TEACHER = {
    **CONFIG, "hidden_size": 448, "intermediate_size": 1088, "num_hidden_layers": 3, "head_dim": 56,
    "dtype": "bfloat16",
}  # fmt: skip
LENGTH, ROWS, RANK, STEPS = 256, 2, 16, 2
TARGETS = ["q_proj", "v_proj"]


def case(method: str, **values: Any) -> Case:
    made: Case = {
        "program": "distill", "task": "distill", "method": method, "weights_dtype": "bfloat16",
        "autocast": "bfloat16", "recomputed": False, "accumulated": 1, "rows": ROWS, "steps": STEPS, "rank": RANK,
        "chunked": False,
        "targets": TARGETS, "length": LENGTH, "config": {**CONFIG, "further_models": {"teacher": TEACHER}}, **values,
    }  # fmt: skip
    return made | {"job": job_of(made)}


def job_of(case: Case) -> dict[str, Any]:
    return {
        "model": "small", "task": "distill", "method": case["method"], "stack": "trl",
        "weights_dtype": case["weights_dtype"], "autocast": case["autocast"], "seq_len": case["length"],
        "micro_batch": case["rows"], "grad_accum": case["accumulated"], "gradient_checkpointing": case["recomputed"],
        "optimizer": "adamw_torch", "max_grad_norm": 1.0,
        "distill": {"teacher": "larger", "on_policy": float(case["chunked"])},
        "loss": "chunked" if case["chunked"] else None,
        **({} if case["method"] == "full" else {"lora": {"rank": RANK, "dropout": 0.0, "targets": TARGETS}}),
        **({"quantization": {"format": "nf4"}} if case["method"] == "qlora" else {}),
    }  # fmt: skip


CASES: dict[str, Case] = {
    "distill full": case("full"),
    "distill lora": case("lora", recomputed=True),
    "distill chunked, full": case("full", chunked=True),
    "distill chunked, lora": case("lora", chunked=True),
}
