"""The names a job's choices go by."""

from __future__ import annotations

TASKS = ("sft", "pretrain", "dpo", "orpo", "kto", "reward", "grpo")
METHODS = ("full", "lora", "qlora")
STACKS = (
    "transformers",
    "trl",
    "axolotl",
    "llama-factory",
    "unsloth",
    "torchtune",
    "litgpt",
    "fsdp_qlora",
    "torchtitan",
    "megatron",
    "nemo",
    "llm-foundry",
)
DTYPES = ("float32", "bfloat16", "float16")
# transformers 5.17.0, training_args.py, OptimizerNames
OPTIMIZERS = (
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
    "adafactor",
    "adamw_anyprecision",
    "adamw_torch_4bit",
    "adamw_torch_8bit",
    "ademamix",
    "sgd",
    "adagrad",
    "adamw_bnb_8bit",
    "adamw_8bit",
    "ademamix_8bit",
    "lion_8bit",
    "lion_32bit",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "rmsprop",
    "rmsprop_bnb",
    "rmsprop_bnb_8bit",
    "rmsprop_bnb_32bit",
    "galore_adamw",
    "galore_adamw_8bit",
    "galore_adafactor",
    "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise",
    "lomo",
    "adalomo",
    "grokadamw",
    "schedule_free_radam",
    "schedule_free_adamw",
    "schedule_free_sgd",
    "apollo_adamw",
    "apollo_adamw_layerwise",
    "stable_adamw",
)
OWN_OPTIMIZERS = ("muon",)
"""What transformers has no `optim` name for. muon: torch.optim.Muon for the matrices, AdamW for the rest."""
