"""Small litgpt programs: the same model in the Hub's words and in litgpt's, and what is trained of it."""

from __future__ import annotations

from typing import Any, NamedTuple

HUB = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 2048, "intermediate_size": 704, "max_position_embeddings": 1024,
}  # fmt: skip
OWN = {
    "n_layer": 2, "n_embd": 256, "n_head": 8, "n_query_groups": 2, "padded_vocab_size": 2048, "vocab_size": 2048,
    "block_size": 1024, "norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "intermediate_size": 704,
    "bias": False, "parallel_residual": False, "rotary_percentage": 1.0,
}  # fmt: skip
GEMMA = {"head_dim": 48, "num_attention_heads": 4}
OWN_GEMMA = {
    "name": "Gemma-small", "head_size": 48, "n_head": 4, "mlp_class_name": "GemmaMLP", "scale_embeddings": True,
    "gelu_approximate": "tanh",
}  # fmt: skip
OWN_GEMMA_2 = {
    "attention_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "post_attention_norm": True,
    "post_mlp_norm": True, "sliding_window_size": 128,
}  # fmt: skip
NEOX = {"model_type": "gpt_neox", "num_attention_heads": 4, "num_key_value_heads": None, "rotary_pct": 0.25}
OWN_NEOX = {
    "n_head": 4, "n_query_groups": 4, "norm_class_name": "LayerNorm", "mlp_class_name": "GptNeoxMLP", "bias": True,
    "parallel_residual": True, "rotary_percentage": 0.25,
}  # fmt: skip
PHI = {"model_type": "phi", "num_attention_heads": 4, "num_key_value_heads": None, "partial_rotary_factor": 0.5}
OWN_PHI = {
    **OWN_NEOX, "rotary_percentage": 0.5, "shared_attention_norm": True, "lm_head_bias": True,
    "gelu_approximate": "tanh",
}  # fmt: skip
OLMO_2 = {"norm_1": False, "norm_2": False, "norm_qk": True, "norm_qk_type": "olmo2"}
AFTER = {"post_attention_norm": True, "post_mlp_norm": True}
OWN_GEMMA_3 = {
    **AFTER, "norm_qk": True, "sliding_window_size": 128, "sliding_window_indices": [1, 1],
    "rope_local_base_freq": 10000, "rope_indices": [1, 1],
}  # fmt: skip
WHOLE = {"n_head": 4, "n_query_groups": 4}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({}, {}),
    "llama-mha": ({"num_attention_heads": 4, "num_key_value_heads": 4}, WHOLE),
    "neox": (NEOX, OWN_NEOX),
    "phi": (PHI, OWN_PHI),
    "gemma": ({**GEMMA, "model_type": "gemma", "num_key_value_heads": 1}, {**OWN_GEMMA, "n_query_groups": 1}),
    "gemma2": ({**GEMMA, "model_type": "gemma2", "sliding_window": 128}, {**OWN_GEMMA, **OWN_GEMMA_2}),
    "mistral": ({"model_type": "mistral", "sliding_window": 128}, {"sliding_window_size": 128}),
    "qwen2": ({"model_type": "qwen2"}, {"attn_bias": True}),
    "qwen3": ({"model_type": "qwen3", "head_dim": 48}, {"head_size": 48, "norm_qk": True}),
    "olmo": ({"model_type": "olmo"}, {"name": "OLMo-small", "norm_class_name": "LayerNorm"}),
    "olmo2": ({"model_type": "olmo2"}, {**OLMO_2, **AFTER}),
    "stablelm": (
        {"model_type": "stablelm", "partial_rotary_factor": 0.25},
        {"norm_class_name": "LayerNorm", "rotary_percentage": 0.25},
    ),
    "gemma3": (
        {**GEMMA, "model_type": "gemma3_text", "sliding_window": 128},
        {**OWN_GEMMA, **OWN_GEMMA_3},
    ),
}
QUERY_VALUE = ("query", "value")
EVERY = ("query", "key", "value", "projection", "mlp", "head")
LAYERS = {
    "query": ["q_proj"], "key": ["k_proj"], "value": ["v_proj"], "projection": ["o_proj"],
    "mlp": ["gate_proj", "up_proj", "down_proj"], "head": ["lm_head"],
}  # fmt: skip


class Case(NamedTuple):
    release: str
    model: str = "llama"
    method: str = "lora"
    adapted: tuple[str, ...] = QUERY_VALUE
    batch: int = 2
    lengths: tuple[int, ...] = (200, 200)
    accum: int = 2
    weights_dtype: str = "bfloat16"
    autocast: str | None = None
    double_quant: bool = False

    def hub(self) -> dict[str, Any]:
        return {**HUB, **MODELS[self.model][0]}

    def job(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "model": "small", "stack": "litgpt", "stack_version": self.release, "method": self.method,
            "weights_dtype": self.weights_dtype, "autocast": self.autocast, "micro_batch": self.batch,
            "grad_accum": self.accum, "lengths": list(self.lengths), "gradient_checkpointing": False,
            "max_grad_norm": 0, "optimizer": "adamw_torch",
        }  # fmt: skip
        if self.method != "full":
            targets = [name for kind in self.adapted for name in LAYERS[kind]]
            values["lora"] = {"rank": 8, "dropout": 0.05, "targets": targets, "adapter_dtype": self.weights_dtype}
        if self.method == "qlora":
            values["quantization"] = {"format": "nf4", "double_quant": self.double_quant}
        return values

    def given(self) -> dict[str, Any]:
        """What program.py is told."""
        config = {**OWN, **MODELS[self.model][1]}
        if self.model == "gemma2":
            config["sliding_window_indices"] = [1, 0]
            if self.release < "0.5":
                config["sliding_window_layer_placing"] = "interleaved"
                del config["sliding_window_indices"]
        values: dict[str, Any] = {
            "method": self.method, "config": config, "batch": self.batch, "lengths": list(self.lengths),
            "accum": self.accum, "weights_dtype": self.weights_dtype, "autocast": self.autocast,
            "stable_embedding": self.release >= "0.5",
        }  # fmt: skip
        if self.method != "full":
            adapted = {f"lora_{kind}": True for kind in self.adapted}
            values["lora"] = {"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05, **adapted}
        if self.method == "qlora":
            values["quantize"] = "nf4-dq" if self.double_quant else "nf4"
        return values


RELEASES = ("0.3.1", "0.4.13", "0.5.13")
CASES: dict[str, Case] = {
    **{f"{release} lora": Case(release) for release in RELEASES},
    **{f"{release} lora everywhere": Case(release, adapted=EVERY) for release in RELEASES},
    **{f"{release} full": Case(release, method="full") for release in RELEASES},
    **{f"{release} qlora": Case(release, method="qlora") for release in RELEASES},
    **{
        f"{release} qlora everywhere, double": Case(release, method="qlora", adapted=EVERY, double_quant=True)
        for release in RELEASES
    },
    **{f"{release} neox": Case(release, "neox") for release in RELEASES},
    **{f"{release} phi everywhere": Case(release, "phi", adapted=EVERY) for release in RELEASES},
    **{f"{release} gemma everywhere": Case(release, "gemma", adapted=EVERY) for release in RELEASES},
    **{f"{release} {model}": Case(release, model) for release in RELEASES[1:] for model in ("gemma2", "mistral")},
    **{f"{release} gemma2 qlora": Case(release, "gemma2", "qlora", EVERY) for release in RELEASES[1:]},
    **{
        f"{release} neox mixed": Case(release, "neox", weights_dtype="float32", autocast="bfloat16")
        for release in RELEASES
    },
    "0.3.1 long then short qlora": Case("0.3.1", "phi", "qlora", lengths=(300, 90), batch=1, accum=1),
    "0.3.1 as many heads as groups": Case("0.3.1", "llama-mha", batch=1),
    "0.5.13 mixed full": Case("0.5.13", method="full", weights_dtype="float32", autocast="bfloat16"),
    **{
        f"0.5.13 {model} {method}": Case("0.5.13", model, method)
        for model in ("qwen2", "qwen3", "olmo", "olmo2", "stablelm", "gemma3")
        for method in ("lora", "full")
    },
}
