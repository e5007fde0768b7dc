"""Small runs of TRL's trainers of rollouts."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 320, "intermediate_size": 768,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 40, "vocab_size": 2048,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "use_cache": True,
}  # fmt: skip
PROMPT, COMPLETION, GENERATIONS, ROWS, RANK, STEPS = 24, 8, 4, 32, 16, 2
TARGETS = ["q_proj", "v_proj"]


def case(task: str, method: str, **values: Any) -> Case:
    made: Case = {
        "program": "rollouts", "task": task, "method": method, "weights_dtype": "bfloat16", "autocast": "bfloat16",
        "recomputed": False, "accumulated": 1, "rows": ROWS, "steps": STEPS, "rank": RANK, "targets": TARGETS,
        "prompt": PROMPT, "completion": COMPLETION, "generations": GENERATIONS, "beta": 0.0, "iterations": 1,
        "served": None, "config": CONFIG, "engine": "transformers", **values,
    }  # fmt: skip
    return made | {"job": job_of(made)}


def job_of(case: Case) -> dict[str, Any]:
    return {
        "model": "small", "task": case["task"], "method": case["method"], "stack": "trl",
        "weights_dtype": case["weights_dtype"], "autocast": case["autocast"],
        "seq_len": case["prompt"] + case["completion"], "micro_batch": case["rows"], "grad_accum": case["accumulated"],
        "gradient_checkpointing": case["recomputed"], "optimizer": "adamw_torch", "max_grad_norm": 1.0,
        "rl": {"generations": case["generations"], "completion_length": case["completion"], "beta": case["beta"],
               "iterations": case["iterations"], "steps_per_generation": case["served"], "engine": case["engine"]},
        **({} if case["method"] == "full" else {"lora": {"rank": RANK, "dropout": 0.0, "targets": TARGETS}}),
        **({"quantization": {"format": "nf4"}} if case["method"] == "qlora" else {}),
    }  # fmt: skip


QWEN3 = {
    **CONFIG, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True,
}  # fmt: skip
GEMMA3 = {
    **CONFIG, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "tie_word_embeddings": True,
    "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 40,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
CASES: dict[str, Case] = {
    "grpo lora": case("grpo", "lora"),
    "grpo full, a reference": case("grpo", "full", beta=0.04),
    "grpo lora, adapters off, recomputed, accumulated": case(
        "grpo", "lora", beta=0.04, recomputed=True, accumulated=3, rows=16, generations=4
    ),
    "grpo lora, each trained on twice": case("grpo", "lora", iterations=2, steps=4),
    "grpo lora, one generation for two steps": case("grpo", "lora", served=2, rows=16, steps=4),
    "grpo qlora": case("grpo", "qlora"),
    "rloo lora": case("rloo", "lora", beta=0.05),
    "grpo lora by vLLM": case("grpo", "lora", engine="vllm"),
    "grpo full by vLLM, a reference, accumulated": case("grpo", "full", engine="vllm", beta=0.04, accumulated=2),
    "rloo lora by vLLM": case("rloo", "lora", engine="vllm", beta=0.05),
    "grpo full, tied": case("grpo", "full", config=QWEN3),
    "grpo lora, a window": case("grpo", "lora", config=GEMMA3),
}
