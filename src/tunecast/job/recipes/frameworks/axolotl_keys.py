"""What Axolotl's keys are: their defaults, those that move nothing, those that no field tells, and words in them."""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.values import switch

NAME = "axolotl"
RELEASE = "0.19.0"
_CONFIG, _TRAINING, _PEFT = (
    "axolotl/utils/schemas/config.py: AxolotlInputConfig",
    "axolotl/utils/schemas/training.py: HyperparametersConfig",
    "axolotl/utils/schemas/peft.py: LoraConfig",
)
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "seq_len": (512, f"{_CONFIG}.sequence_len"),
    "micro_batch": (1, f"{_TRAINING}.micro_batch_size"),
    "grad_accum": (1, f"{_TRAINING}.gradient_accumulation_steps"),
    "optimizer": ("adamw_torch_fused", f"{_TRAINING}.optimizer"),
    "gradient_checkpointing": (False, f"{_CONFIG}.gradient_checkpointing"),
    "data.epochs": (1.0, f"{_TRAINING}.num_epochs"),
    "lora.dropout": (0.0, f"{_PEFT}.lora_dropout"),
    "val_set_size": (0.0, f"{_CONFIG}.val_set_size"),
    "bf16": ("auto", f"{_CONFIG}.bf16"),
}
OWN_KEYS = (
    "sequence_len", "datasets", "micro_batch_size", "adapter", "val_set_size", "sample_packing", "pretraining_dataset",
    "num_epochs",
)  # fmt: skip
WITHOUT_EFFECT = (
    "wandb_*", "mlflow_*", "comet_*", "trackio_*", "swanlab_*", "otel_*", "use_*wandb", "use_mlflow", "use_comet",
    "use_trackio", "use_tensorboard", "use_swanlab", "use_otel_metrics", "*_project", "project_name", "hub_*", "hf_*",
    "push_dataset_to_hub", "dataset_prepared_path", "special_tokens", "tokens", "added_tokens_overrides", "tokenizer_*",
    "chat_template*", "default_system_message", "eot_tokens", "model_type", "type_of_model", "base_model_config",
    "base_model_ignore_patterns", "revision_of_model", "cls_model_config", "is_*_derived_model", "datasets",
    "test_datasets", "pretraining_dataset", "shuffle_*", "dataset_shard_*", "num_dataset_shards_to_save",
    "dataset_keep_in_memory", "dataset_exact_deduplication", "streaming*", "pretrain_multipack_*",
    "pretraining_sample_concatenation", "preprocess_iterable", "excess_length_strategy", "min_sample_len",
    "curriculum_sampling", "sample_packing_*", "train_on_inputs", "remove_unused_columns", "output_dir",
    "learning_rate", "embedding_lr*", "lr_*", "loraplus_*", "cosine_*", "eta_min", "weight_decay", "adam_*", "warmup_*",
    "logging_*", "loss_watchdog_*", "metric_for_best_model", "greater_is_better", "load_best_model_at_end",
    "resume_from_checkpoint", "auto_resume_from_checkpoints", "lora_model_dir", "lora_fan_in_fan_out", "lora_on_cpu",
    "lora_alpha_pattern", "peft_init_lora_weights", "peft_ensure_weight_tying", "merge_*", "save_safetensors",
    "save_first_step", "strict", "trust_remote_code", "debug", "seed", "neftune_noise_alpha", "noisy_embedding_alpha",
    "torchdistx_path", "local_rank", "world_size", "device", "device_map", "ddp_timeout", "ddp_broadcast_buffers",
    "ddp", "experimental_skip_move_to_device", "low_cpu_mem_usage", "qlora_sharded_model_loading",
    "resize_token_embeddings_to_32x", "mean_resizing_embeddings", "shrink_embeddings", "embeddings_skip_upcast",
    "fix_untrained_tokens", "reinit_weights", "heads_k_stride", "ring_attn_func", "include_t*", "profiler_*",
    "dataloader_pin_memory", "dataloader_prefetch_factor", "eval_causal_lm_metrics", "flex_attn_compile_kwargs",
    "liger_layer_norm", "liger_rms_norm_gated", "liger_use_token_scaling", "gc_collect_steps",
    "fsdp_final_state_dict_type", "use_ray", "ray_run_name", "resources_per_worker", "gptq_*", "relora_*", "jagged_*",
    "lisa_*", "model_config.output_router_logits", "overrides_of_model_config.rope_scaling",
    "overrides_of_model_config.rope_parameters", "freeze_mm_modules", "rope_scaling", "dp_shard_size",
    "num_generation_samples", "generation_*",
    "rl_beta", "dpo_*", "orpo_alpha", "kto_*", "simpo_gamma", "cpo_alpha", "max_prompt_len",
    "center_rewards_coefficient",
)  # fmt: skip

OPTIMIZERS = {
    "ao_adamw_4bit": "adamw_torch_4bit",
    "ao_adamw_8bit": "adamw_torch_8bit",
    "optimi_adamw": "adamw_torch",
    "adopt_adamw": "adamw_torch",
    "adamc": "adamw_torch",
}
"""Axolotl's own names (axolotl/core/builders/base.py, `_configure_optimizer`)."""
LIKE_ADAMW = ("optimi_adamw", "adopt_adamw", "adamc")
"""Which keep as much as AdamW does, and step otherwise."""
ATTENTION_FLAGS = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
"""axolotl/utils/schemas/enums.py, LEGACY_ATTN_FLAG_TO_IMPL: the first that is set counts."""
NEAREST_ATTENTION = {
    "sage": "flash_attention_2",
    "fp8": "sdpa",
    "flash_attention_4": "flash_attention_3",
    "flash_attention_torch": "flash_attention_2",
}
PACKS_NOT = ("sdpa", "eager", "fp8", "")
"""Attention that has no kernel for rows of many samples (ATTN_IMPLS_SUPPORTING_PACKING): rows stay rows."""
LIGER = {
    "liger_rope": "liger_rope",
    "liger_rms_norm": "liger_rms_norm",
    "liger_glu_activation": "liger_glu",
    "liger_swiglu": "liger_glu",
    "liger_cross_entropy": "liger_cross_entropy",
    "liger_fused_linear_cross_entropy": "liger_fused_linear_cross_entropy",
}
LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
PLUGIN_TASKS = {
    "diffusion": ("diffusion", "a language model that is trained to fill in masked tokens"),
    "kd": ("distillation", "a teacher's probabilities are trained on"),
    "hatchery": ("training on a remote service", "nothing runs on cards of one's own"),
}
"""By the module of axolotl.integrations."""
PLUGINS_READ = ("liger", "cut_cross_entropy", "kernels", "swanlab", "lm_eval", "expert_parallel")
"""Whose keys are read below, or that move nothing while it trains."""
PLUGINS_REPORTED = {
    "spectrum": "only the layers with the best signal-to-noise ratio are trained",
    "densemixer": "every expert sees every token",
    "grokfast": "an average of the gradients is kept",
    "llm_compressor": "weights are pruned or quantised while it trains",
    "mora": "square matrices take the place of LoRA's",
    "nemo_gym": "environments of NeMo Gym reward completions, over several turns where they have any",
}
REPORTED: Mapping[str, str] = {
    "lora_modules_to_save": "these modules are trained whole, beside the adapters",
    "lora_rank_pattern": "ranks differ by module",
    "lora_exclude_modules": "these modules get no adapter",
    "peft_layers_to_transform": "only these layers get adapters",
    "peft_layer_replication": "layers are used more than once",
    "peft_trainable_token_indices": "rows of the embedding are trained",
    "peft.loftq_config.loftq_bits": "adapters start from the error of quantisation",
    "relora": "adapters are merged and begun anew while it trains",
    "nvfp4_merge_aware": "weights with their adapters are rounded to 4 bits again in each forward pass",
    "use_scattermoe": "kernels of experts' layers",
    "use_sonicmoe": "kernels of experts' layers",
    "use_onebitllms": "weights of 1.58 bits",
    "expert_backend": "kernels of experts' layers",
    "moe_grouped_backend": "kernels of experts' layers",
    "dsv4_fp4_grouped_mode": "kernels of experts' layers",
    "use_dsv4_kernels": "kernels of DeepSeek V4's attention",
    "use_glm_dsa_kernels": "kernels of GLM's sparse attention",
    "fused_attn_kernel": "norm and rotation of queries and keys in one kernel",
    "flash_attn_fuse_mlp": "a fused MLP",
    "flash_attn_cross_entropy": "flash-attn's loss",
    "flash_attn_rms_norm": "flash-attn's norm",
    "flash_optimum": "BetterTransformer's attention",
    "gemma4_hybrid_attn_impl": "wide heads run with sdpa, the others with FlashAttention 2; taken is sdpa for all",
    "large_head_attention": "wide heads have a kernel of their own",
    "flash_attn_d512": "wide heads have a kernel of their own",
    "scaling_softmax": "attention with a softmax that is scaled",
    "tiled_mlp": "the MLP takes a part of the row at a time; taken is all of it at once, which needs more",
    "chunked_cross_entropy": "the loss takes a part of the row at a time",
    "use_eaft": "a loss that looks at the largest logits too",
    "selective_checkpointing": "some operations are kept, not computed again",
    "layer_offloading": "layers' weights wait in host memory",
    "ple_cpu_offload": "some weights stay in host memory",
    "torch_compile": "torch.compile under Axolotl's trainer",
    "deepcompile": "DeepSpeed's own compiler passes",
    "batch_flattening": "rows of a batch are laid end to end, without padding",
    "auto_find_batch_size": "the batch is halved until it fits",
    "torch_empty_cache_steps": "the allocator's cache is given back every few steps",
    "gc_steps": "the allocator's cache is given back every few steps",
    "early_stopping_patience": "the run ends where evaluations stop improving",
    "optim_args": "arguments of the optimizer",
    "optim_target_modules": "the optimizer projects these modules alone",
    "max_memory": "weights go where there is room, the host's memory too",
    "gpu_memory_limit": "weights go where there is room, the host's memory too",
    "fp8_enable_fsdp_float8_all_gather": "weights are gathered in 8 bits",
    "fp32_norms": "norms stay in float32",
    "do_causal_lm_eval": "texts are generated at each evaluation",
    "generate_samples": "texts are generated while it trains",
    "do_bench_eval": "benchmarks are run at each evaluation",
    "eval_table_size": "texts are generated at each evaluation",
    "ddp_bucket_cap_mb": "taken are DDP's buckets of 25 MB",
    "dynamic_checkpoint": "checkpoints are written on demand",
    "use_pose": "rows hold parts of longer ones",
    "trainer_cls": "a trainer of one's own",
}
"""Keys that no field tells, where they are on."""
SHIPPED: Mapping[str, tuple[int, str]] = {
    "zero1": (1, "none"),
    "zero1_torch_compile": (1, "none"),
    "zero2": (2, "optimizer"),
    "zero2_torch_compile": (2, "optimizer"),
    "zero3": (3, "none"),
    "zero3_bf16": (3, "none"),
    "zero3_bf16_cpuoffload_all": (3, "parameters"),
    "zero3_bf16_cpuoffload_params": (3, "parameters"),
}
"""Axolotl's deepspeed_configs, which `axolotl fetch` puts beside the file: the stage, and what waits in host memory."""


def is_on(value: object) -> bool:
    return bool(value) and switch(value) is not False


def assume_default(draft: Draft, field: str) -> None:
    draft.assume(field, DEFAULTS[field][0])


def plugins_of(keys: Keys) -> list[str]:
    """`liger` of axolotl.integrations.liger.LigerPlugin."""
    given = keys.get("plugins")
    names = [each for each in given if isinstance(each, str)] if isinstance(given, list) else []
    return [name.removeprefix("axolotl.integrations.").partition(".")[0] for name in names]


def attention_packs(draft: Draft) -> bool:
    return draft.fields.get("attention") not in PACKS_NOT
