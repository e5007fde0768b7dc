"""Two-layer jobs `make.py` traces with older releases of transformers. All widths differ: sizes tell tensors apart."""

from __future__ import annotations

from typing import Any

RELEASES = ("4.45.2", "4.48.1", "4.57.1")
WIDTHS = {
    "hidden_size": 320, "intermediate_size": 768, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **WIDTHS, "head_dim": 40},
    "mistral": {"model_type": "mistral", **WIDTHS, "head_dim": 40, "sliding_window": None},
    "mistral-window": {"model_type": "mistral", **WIDTHS, "head_dim": 40, "sliding_window": 128},
    "qwen2": {"model_type": "qwen2", **WIDTHS},
    "gemma": {
        "model_type": "gemma", **WIDTHS, "head_dim": 40, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    },
}  # fmt: skip
JOB = {
    "model": "small", "weights_dtype": "bfloat16", "autocast": None, "seq_len": 256, "micro_batch": 2,
    "optimizer": "adamw_torch", "max_grad_norm": 1.0, "gradient_checkpointing": False,
}  # fmt: skip
FULL = {"method": "full"}
EAGER = {"method": "full", "attention": "eager"}
RECOMPUTED = {"gradient_checkpointing": True, "autocast": "bfloat16"}
LORA = {"method": "lora", "lora": {"rank": 16, "dropout": 0.1, "targets": ["q_proj", "v_proj"]}, **RECOMPUTED}
ONCE = {**LORA, "checkpoint_reentrant": False}
FLASH = {**LORA, "attention": "flash_attention_2"}
QLORA = {**LORA, "method": "qlora", "quantization": {"format": "nf4", "double_quant": True}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama full": ("llama", FULL),
    "llama eager": ("llama", EAGER),
    "llama lora": ("llama", LORA),
    "llama lora, not reentrant": ("llama", ONCE),
    "llama qlora, flash": ("llama", {**QLORA, "attention": "flash_attention_2"}),
    "mistral full": ("mistral", FULL),
    "mistral lora, flash": ("mistral", FLASH),
    "mistral qlora": ("mistral", QLORA),
    "mistral eager, window": ("mistral-window", EAGER),
    "qwen2 full": ("qwen2", FULL),
    "qwen2 lora, flash": ("qwen2", FLASH),
    "gemma full": ("gemma", FULL),
    "gemma lora, flash": ("gemma", FLASH),
}
"""Where nobody says which kind, checkpointing is that of the release: reentrant."""
CASES = [f"{release}: {kind}" for release in RELEASES for kind in KINDS]


def case(name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The release, the model's configuration and the job."""
    release, _, kind = name.partition(": ")
    model, values = KINDS[kind]
    return release, CONFIGS[model], {**JOB, **values, "transformers_version": release}
