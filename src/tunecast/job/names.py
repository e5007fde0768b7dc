"""The names a job's choices go by, and other spellings of them."""

from __future__ import annotations

LANGUAGE = ("sft", "pretrain")
"""Tasks whose loss is the language model's own."""
TASKS = (
    *LANGUAGE,
    *("dpo", "kto", "orpo", "cpo", "simpo", "reward", "prm", "classify", "embed", "rerank", "grpo", "rloo", "ppo"),
    "distill",
)
PAIRS = ("dpo", "orpo", "cpo", "simpo", "reward")
"""Tasks whose samples are pairs: `micro_batch` counts these, and rows are twice as many."""
PREFERENCES = ("dpo", "kto", "orpo", "cpo", "simpo")
"""Tasks that learn from answers that were preferred to others."""
REFERENCED = ("dpo", "kto")
"""Those of them whose loss asks a reference."""
HEADS = ("reward", "prm", "classify", "embed", "rerank")
"""Tasks whose model has another head than the vocabulary's, or none."""
ROLLOUTS = ("grpo", "rloo", "ppo")
"""Tasks that train on completions they generate: `micro_batch` counts completions."""
TAUGHT = ("distill", "grpo")
"""Tasks that may have a teacher: the one learns from it alone, the other may hear it beside rewards, or instead."""


TITLES = {
    "dpo": "DPO", "kto": "KTO", "orpo": "ORPO", "cpo": "CPO", "simpo": "SimPO", "reward": "reward model",
    "prm": "process reward model", "classify": "classifier", "embed": "embedder", "rerank": "reranker",
    "grpo": "GRPO", "rloo": "RLOO", "ppo": "PPO", "distill": "distillation",
}  # fmt: skip
"""Of tasks beyond the language model's own loss, as reports name them."""


def rows_a_sample(task: str) -> int:
    """Rows of a batch that one sample makes: `micro_batch` counts samples."""
    return 2 if task in PAIRS else 1


METHODS = ("full", "lora", "qlora")
DTYPES = ("float32", "bfloat16", "float16")
BITSANDBYTES = ("nf4", "fp4", "int8")
"""Of `quantization.format`."""

SAME = {
    # torch's own short names; `half` and `float` are torch.float16 and torch.float32 (torch/_tensor_docs.py)
    **{"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16"},
    **{"fp32": "float32", "f32": "float32", "float": "float32", "fp8": "float8", "fp4": "float4", "nvfp4": "float4"},
    # transformers' attn_implementation, and what its users call it
    **dict.fromkeys(("fa2", "flash", "flash_attn", "flash_attn_2", "flash_attention", "flash2"), "flash_attention_2"),
    **dict.fromkeys(("fa3", "flash_attn_3", "flash3"), "flash_attention_3"),
    **dict.fromkeys(("flex", "flex_attn"), "flex_attention"),
    **dict.fromkeys(("kernels_community/flash_attn", "kernels_community/flash_attn2"), "flash_attention_2"),
    # kernels of the Hub, which `attn_implementation` may name; vLLM's are built from flash-attn's
    **dict.fromkeys(("kernels_community/flash_attn3", "kernels_community/vllm_flash_attn3"), "flash_attention_3"),
    # Both adamw_torch and adamw_torch_fused are torch.optim.AdamW; the fused one is what transformers' `optim` is
    # when nobody says (TrainingArguments.default_optim). The others: the names of OptimizerNames' members.
    **dict.fromkeys(("adamw", "adamw_fused"), "adamw_torch_fused"),
    # torch.optim's classes, of lists of tensors unless they are told to fuse; Adam is AdamW but for where decay is put
    **dict.fromkeys(("optim.adamw", "optim.adam", "adam"), "adamw_torch"),
    **{"optim.sgd": "sgd", "optim.muon": "muon", "dist_muon": "muon"},
    **dict.fromkeys(("transformer_engine.pytorch.optimizers.fused_adam.fusedadam", "te_adam"), "te_fused_adam"),
    **dict.fromkeys(("transformer_engine.pytorch.optimizers.fusedadam",), "te_fused_adam"),
    **dict.fromkeys(("flashoptim.flashadamw", "flashadamw"), "flash_adamw"),
    **{
        f"{package}.optim.{name}": meant
        for package in ("bitsandbytes", "bnb")
        for name, meant in (
            ("adamw8bit", "adamw_8bit"),
            ("pagedadamw", "paged_adamw_32bit"),
            ("pagedadamw32bit", "paged_adamw_32bit"),
            ("pagedadamw8bit", "paged_adamw_8bit"),
            ("lion8bit", "lion_8bit"),
            ("pagedlion8bit", "paged_lion_8bit"),
        )
    },
    **{"adamw_bnb": "adamw_bnb_8bit", "adamw8bit": "adamw_8bit", "lion": "lion_32bit", "lion8bit": "lion_8bit"},
    **{"paged_adamw": "paged_adamw_32bit", "paged_adamw8bit": "paged_adamw_8bit", "paged_lion": "paged_lion_32bit"},
    **{"paged_ademamix": "paged_ademamix_32bit", "rmsprop_8bit": "rmsprop_bnb_8bit"},
    **dict.fromkeys(("full_finetune", "full_finetuning", "full_parameter", "fft"), "full"),
    **{"pt": "pretrain", "rm": "reward", "gkd": "distill", "embedding": "embed", "reranker": "rerank"},
    **{
        "classification": "classify",
        "seq_cls": "classify",
        "distillation": "distill",
        "hf": "transformers",
        "huggingface": "transformers",
    },
    **{"llamafactory": "llama_factory", "foundry": "llm_foundry", "all": "all_linear"},
    # accelerate's fsdp_state_dict_type, fsdp's strategies
    **{"full_state_dict": "full", "sharded_state_dict": "sharded", "full_shard": "fsdp"},
    **{"zero_1": "zero1", "zero_2": "zero2", "zero_3": "zero3"},
    **{"4bit": "nf4", "8bit": "int8"},
}
"""Other spellings of a value, in lower case and with _; one counts where the field has what it stands for."""
