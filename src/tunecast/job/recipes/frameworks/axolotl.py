"""Axolotl's YAML: `axolotl train x.yaml --micro-batch-size 4`, `accelerate launch -m axolotl.cli.train x.yaml`.

Keys and defaults: axolotl/utils/schemas/config.py, `AxolotlInputConfig`; axolotl/utils/schemas/training.py,
`HyperparametersConfig`; axolotl/utils/schemas/peft.py, `LoraConfig`. What its validators and builders make of them:
axolotl/utils/schemas/validation.py; axolotl/utils/config/__init__.py, `normalize_config`, `resolve_dtype`;
axolotl/core/builders/base.py, `TrainerBuilderBase`; axolotl/core/builders/causal.py, `HFCausalTrainerBuilder`;
axolotl/loaders/model.py, `ModelLoader`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from tunecast.job.kernels import by_whole
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.parts.deepspeed import put_stage, take_deepspeed
from tunecast.job.recipes.parts.fsdp import take_fsdp
from tunecast.job.recipes.request import Invocation, Request
from tunecast.job.recipes.values import number, switch, whole, word
from tunecast.job.recipes.words import Word, flags_of

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
)  # fmt: skip

TASKS = {"dpo": "dpo", "ipo": "dpo", "orpo": "orpo", "kto": "kto", "grpo": "grpo"}
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
    "nemo_gym": ("reinforcement learning", "texts are generated between steps"),
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
}
REPORTED: Mapping[str, str] = {
    "lora_modules_to_save": "these modules are trained whole, beside the adapters",
    "lora_target_parameters": "experts' weights get adapters",
    "lora_rank_pattern": "ranks differ by module",
    "lora_exclude_modules": "these modules get no adapter",
    "peft_layers_to_transform": "only these layers get adapters",
    "peft_layer_replication": "layers are used more than once",
    "peft_trainable_token_indices": "rows of the embedding are trained",
    "peft.loftq_config.loftq_bits": "adapters start from the error of quantisation",
    "unfrozen_parameters": "only these weights are trained",
    "relora": "adapters are merged and begun anew while it trains",
    "llama4_linearized_experts": "experts are layers of their own",
    "nvfp4_merge_aware": "the base's weights are in 4 bits of NVIDIA's format",
    "use_scattermoe": "kernels of experts' layers",
    "use_sonicmoe": "kernels of experts' layers",
    "use_onebitllms": "weights of 1.58 bits",
    "expert_backend": "kernels of experts' layers",
    "moe_grouped_backend": "kernels of experts' layers",
    "fused_attn_kernel": "norm and rotation of queries and keys in one kernel",
    "flash_attn_fuse_mlp": "a fused MLP",
    "flash_attn_cross_entropy": "flash-attn's loss",
    "flash_attn_rms_norm": "flash-attn's norm",
    "flash_optimum": "BetterTransformer's attention",
    "gemma4_hybrid_attn_impl": "layers differ in their kernel of attention",
    "large_head_attention": "wide heads have a kernel of their own",
    "flash_attn_d512": "wide heads have a kernel of their own",
    "scaling_softmax": "attention with a softmax that is scaled",
    "tiled_mlp": "the MLP takes a part of the row at a time",
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


_LIGER = ("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy")
_METHODS: Mapping[object, Mapping[str, object]] = {
    "lora": {"adapter": "lora"},
    "qlora": {"adapter": "qlora", "load_in_4bit": True},
}
WORDS: Mapping[str, Any] = {
    "micro_batch": "micro_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "gradient_checkpointing": "gradient_checkpointing",
    "seq_len": "sequence_len",
    "optimizer": "optimizer",
    "offload_activations": "activation_offloading",
    "compile": "torch_compile",
    "attention": "attn_implementation",
    "lora.rank": "lora_r",
    "lora.alpha": "lora_alpha",
    "method": _METHODS.get,
    "kernels": lambda kernels: (
        {"plugins": ["axolotl.integrations.liger.LigerPlugin"], **dict.fromkeys(_LIGER, True)}
        if "liger" in kernels
        else None
    ),
}
"""Keys that say a field, where a file is to be changed."""


def recognises(document: Document) -> bool:
    return document.has("base_model") and any(map(document.has, OWN_KEYS))


def invocation(words: Sequence[Word]) -> Invocation | None:
    """Behind `--` and behind `--launcher-args` stands what the launcher is told."""
    program = words[0].rpartition("/")[2] if words else ""
    if program == "axolotl" and len(words) > 1 and words[1] == "train":
        behind = list(words[2:])
    elif program in ("axolotl.cli.train", "axolotl.cli", "train.py") and "axolotl" in words[0]:
        behind = list(words[1:])
    else:
        return None
    behind = list(takewhile(lambda each: each != "--", behind))
    flags = flags_of([each for each in behind if not each.endswith((".yaml", ".yml"))])
    own = {"launcher", "cloud", "sweep", "cli_args", "num_processes", "main_process_port"}
    values = {name: value for name, value in flags.values.items() if name not in own}
    config = next((str(each) for each in behind if each.endswith((".yaml", ".yml"))), None)
    return Invocation(config, values, flags.lines)


def read(draft: Draft, request: Request) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    draft.put("stack", "axolotl", keys, "base_model")
    take_model(draft, keys, request)
    take_task(draft, keys)
    take_plugins(draft, keys)
    take_method(draft, keys)
    take_precision(draft, keys)
    take_attention(draft, keys)
    take_checkpointing(draft, keys)
    take_optimizer(draft, keys)
    take_rows(draft, keys)
    take_run(draft, keys)
    take_sharing(draft, keys, request)
    take_mesh(draft, keys)
    take_kernels(draft, keys)
    draft.assume("allocator", "expandable_segments")
    for name, why in REPORTED.items():
        if is_on(keys.document.get(name)):
            draft.not_modelled(keys, name, why)
        else:
            keys.ignore(name)


def is_on(value: object) -> bool:
    return bool(value) and switch(value) is not False


def assume_default(draft: Draft, field: str) -> None:
    draft.assume(field, DEFAULTS[field][0])


def take_model(draft: Draft, keys: Keys, request: Request) -> None:
    model = keys.get("base_model")
    if isinstance(model, str) and model.startswith(("./", "../")):
        model = str(request.folder / model)
    draft.put("model", model, keys, "base_model")
    quantised = keys.get("model_quantization_config")
    if quantised is not None and not is_on(keys.get("model_quantization_config_kwargs.dequantize")):
        draft.not_modelled(keys, "model_quantization_config", "the format that the checkpoint's weights are loaded in")
    keys.ignore("model_quantization_config_kwargs")


def take_task(draft: Draft, keys: Keys) -> None:
    kind, model_type = word(keys.get("rl")), word(keys.document.get("model_type"))
    if kind in TASKS:
        draft.put("task", TASKS[kind], keys, "rl")
    elif kind:
        draft.refuse(kind, "a task that is not modelled")
    elif is_on(keys.get("reward_model")):
        draft.put("task", "reward", keys, "reward_model")
    elif is_on(keys.get("process_reward_model")):
        draft.refuse("process reward model", "each step of an answer is classified")
    elif "classification" in model_type or whole(keys.get("num_labels")):
        draft.refuse("classification", "the model ends in classes, not in tokens")
    elif is_on(keys.document.get("pretraining_dataset")):
        draft.put("task", "pretrain", keys, "pretraining_dataset")
    else:
        draft.assume("task", "sft")
    if is_on(keys.get("qat")):
        draft.refuse("QAT", "quantisation is imitated while it trains")
    if is_on(keys.get("processor_type")) or is_on(keys.get("is_multimodal")):
        draft.refuse("images or sound", "rows hold more than text")
    if is_on(keys.document.get("lisa_n_layers")) and is_on(keys.document.get("lisa_step_interval")):
        draft.refuse("LISA", "layers are frozen in turns")


def take_plugins(draft: Draft, keys: Keys) -> None:
    plugins = plugins_of(keys)
    for name in plugins:
        if name in PLUGIN_TASKS:
            draft.refuse(*PLUGIN_TASKS[name])
        elif name in PLUGINS_REPORTED:
            draft.not_modelled(keys, "plugins", PLUGINS_REPORTED[name])
        elif name not in PLUGINS_READ:
            draft.not_modelled(keys, "plugins", f"{name[:64]}: a plugin that is not known here")
    if is_on(keys.document.get("kd_trainer")):
        draft.refuse(*PLUGIN_TASKS["kd"])


def plugins_of(keys: Keys) -> list[str]:
    """`liger` of axolotl.integrations.liger.LigerPlugin."""
    given = keys.get("plugins")
    names = [each for each in given if isinstance(each, str)] if isinstance(given, list) else []
    return [name.removeprefix("axolotl.integrations.").partition(".")[0] for name in names]


def take_method(draft: Draft, keys: Keys) -> None:
    """4 bits count with adapter qlora alone, 8 bits with lora (`ModelLoader._set_quantization_config`)."""
    adapter = word(keys.get("adapter"))
    four, eight = keys.get("load_in_4bit"), is_on(keys.get("load_in_8bit"))
    if adapter in ("", "none"):
        draft.assume("method", "full")
        return
    if adapter not in ("lora", "qlora"):
        draft.refuse(f"adapter {adapter[:64]}", "LoRA's are modelled")
        return
    is_quantised = adapter == "qlora" or eight or is_on(keys.get("gptq"))
    draft.put("method", "qlora" if is_quantised else "lora", keys, "adapter")
    if adapter == "qlora":
        kwargs = "bnb_config_kwargs"
        kind = keys.get(f"{kwargs}.bnb_4bit_quant_type")
        draft.put(
            "quantization.format", kind or "nf4", keys, f"{kwargs}.bnb_4bit_quant_type", "load_in_4bit", "adapter"
        )
        double = switch(keys.get(f"{kwargs}.bnb_4bit_use_double_quant"))
        if double is None:
            draft.assume("quantization.double_quant", True)
        else:
            draft.put("quantization.double_quant", double, keys, f"{kwargs}.bnb_4bit_use_double_quant")
        keys.get(f"{kwargs}.llm_int8_has_fp16_weight", f"{kwargs}.bnb_4bit_quant_storage")
    elif eight:
        draft.put("quantization.format", "int8", keys, "load_in_8bit")
    elif is_quantised:
        draft.put("quantization.format", "gptq", keys, "gptq")
    elif is_on(four):
        draft.not_modelled(keys, "load_in_4bit", "with adapter lora Axolotl loads 16 bits; taken are these")
    if is_on(keys.get("quantize_moe_experts")) and draft.fields.get("quantization.format") in ("nf4", "fp4", "int8"):
        draft.put("quantization.experts", True, keys, "quantize_moe_experts")
    if is_quantised:
        # `_convert_embedding_modules_dtype` undoes what prepare_model_for_kbit_training cast
        draft.assume("quantization.prepare_kbit", False)
    take_adapter(draft, keys)


def take_adapter(draft: Draft, keys: Keys) -> None:
    draft.take("lora.rank", keys, "lora_r")
    draft.take("lora.alpha", keys, "lora_alpha")
    draft.take("lora.dropout", keys, "lora_dropout")
    assume_default(draft, "lora.dropout")
    draft.take("lora.dora", keys, "peft_use_dora")
    draft.take("lora.rslora", keys, "peft_use_rslora")
    given = keys.get("lora_target_modules")
    if is_on(keys.get("lora_target_linear")):
        draft.put("lora.targets", "all-linear", keys, "lora_target_linear")
        beyond = {"lm_head", "embed_tokens", "wte", "embed_in", "embed_out"}
        if isinstance(given, list) and beyond & {each for each in given if isinstance(each, str)}:
            draft.not_modelled(keys, "lora_target_modules", "embedding or head get adapters too")
    elif given:
        names = module_names(given)
        draft.put("lora.targets", given if names is None else names, keys, "lora_target_modules")
    if switch(keys.get("peft_autocast_adapter_dtype")) is False:
        draft.put("lora.adapter_dtype", "bfloat16", keys, "peft_autocast_adapter_dtype")
    else:
        draft.assume("lora.adapter_dtype", "float32", "PEFT")


def module_names(given: Any) -> list[str] | None:
    """The modules an expression names: of `model.layers.[\\d]+.(mlp|self_attn).(up|down|q)_proj` up_proj, down_proj and
    q_proj. None where it is another. Expressions are never run: one may take forever."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list):
        return None
    names: list[str] = []
    for each in given:
        if not isinstance(each, str):
            return None
        last = each.replace("\\.", ".").rstrip("$").rpartition(".")[2]
        before, opened, behind = last.partition("(")
        choices, closed, after = behind.partition(")")
        parts = [f"{before}{choice}{after}" for choice in choices.split("|")] if opened and closed else [last]
        if not all(part.replace("_", "").isalnum() for part in parts):
            return None
        names += parts
    return list(dict.fromkeys(names))


def take_precision(draft: Draft, keys: Keys) -> None:
    """`resolve_dtype`: the weights are loaded in what is computed in."""
    bf16, fp16 = keys.get("bf16"), is_on(keys.get("fp16"))
    pure = {"bfloat16": is_on(keys.get("bfloat16")), "float16": is_on(keys.get("float16"))}
    is_auto = word(bf16) == "auto" or (bf16 is None and not any(pure.values()) and not fp16 and not keys.has("bf16"))
    if is_auto and not fp16:
        for field in ("autocast", "weights_dtype"):
            draft.assume(field, "bfloat16", f"{NAME} {RELEASE}: bf16 auto, on cards that have it")
    elif is_on(bf16) and not is_auto:
        for field in ("autocast", "weights_dtype"):
            draft.put(field, "bfloat16", keys, "bf16")
    elif fp16:
        for field in ("autocast", "weights_dtype"):
            draft.put(field, "float16", keys, "fp16")
    else:
        kind = next((name for name, given in pure.items() if given), "float32")
        draft.put("autocast", None, keys, "bf16", "fp16", kind)
        draft.put("weights_dtype", kind, keys, kind, "bf16", "fp16")
    keys.get("float32", "bf16_full_eval")
    if is_on(keys.get("fp8")):
        draft.put("matmul_dtype", "float8", keys, "fp8")
    keys.get("tf32")
    if draft.fields.get("weights_dtype") == "float32" and is_on(keys.get("tf32")):
        draft.not_modelled(keys, "tf32", "products of float32 in TensorFloat-32")


def take_attention(draft: Draft, keys: Keys) -> None:
    flag = next((name for name in ATTENTION_FLAGS if is_on(keys.get(name))), None)
    given = keys.get("attn_implementation")
    if given is None and flag is None:
        draft.assume("attention", "sdpa")
    else:
        name = "attn_implementation" if given is not None else str(flag)
        kind = given if given is not None else ATTENTION_FLAGS[str(flag)]
        near = NEAREST_ATTENTION.get(word(kind))
        draft.put("attention", near or kind, keys, name)
        if near is not None:
            draft.not_modelled(keys, name, f"taken is {near}")
    casts = draft.fields["attention"] not in ("sdpa", "eager") or "cut_cross_entropy" in plugins_of(keys)
    is_shared = is_on(keys.document.get("fsdp")) or is_on(keys.document.get("fsdp_config"))
    if draft.fields.get("method") == "full" and not casts and not is_shared:
        draft.not_modelled(keys, "base_model", "norms, embedding and head are trained in float32 with this attention")


def take_checkpointing(draft: Draft, keys: Keys) -> None:
    """`check_gradient_checkpointing_w_offload`; `_configure_gradient_checkpointing`."""
    given, offloads = keys.get("gradient_checkpointing"), keys.get("activation_offloading")
    if word(given) in ("offload", "offload_disk"):
        name = "gradient_checkpointing"
    else:
        name = "activation_offloading" if is_on(offloads) else ""
    if given is not None:
        draft.put("gradient_checkpointing", True if name else given, keys, "gradient_checkpointing")
    assume_default(draft, "gradient_checkpointing")
    if name:
        draft.put("offload_activations", True, keys, name)
        if "disk" in word(keys.get(name)):
            draft.not_modelled(keys, name, "activations wait on a drive; taken is that they wait in host memory")
    if not draft.fields["gradient_checkpointing"]:
        keys.ignore("gradient_checkpointing_kwargs")
        return
    is_plain = not is_on(keys.document.get("unfrozen_parameters")) and keys.document.get("rl") is None
    kwargs = "gradient_checkpointing_kwargs"
    given = keys.get(f"{kwargs}.use_reentrant")
    if given is not None:
        draft.put("checkpoint_reentrant", given, keys, f"{kwargs}.use_reentrant")
    else:
        draft.assume("checkpoint_reentrant", is_plain and keys.document.get(kwargs) is None)
    keys.get(kwargs)


def take_optimizer(draft: Draft, keys: Keys) -> None:
    given = keys.get("optimizer")
    if given is not None:
        draft.put("optimizer", OPTIMIZERS.get(word(given), given), keys, "optimizer")
        if word(given) in LIKE_ADAMW:
            draft.not_modelled(keys, "optimizer", "taken is AdamW, whose states are as large")
    assume_default(draft, "optimizer")
    draft.take("max_grad_norm", keys, "max_grad_norm")
    draft.assume("max_grad_norm", 1.0, "transformers")


def take_rows(draft: Draft, keys: Keys) -> None:
    """With packing a batch is one row of micro_batch_size times sequence_len tokens, unless the attention has no kernel
    for it (`multipack_real_batches`)."""
    draft.take("seq_len", keys, "sequence_len")
    draft.take("micro_batch", keys, "micro_batch_size")
    for field in ("seq_len", "micro_batch"):
        assume_default(draft, field)
    take_accumulation(draft, keys)
    length, rows = whole(draft.fields["seq_len"]), whole(draft.fields["micro_batch"])
    packs = is_on(keys.get("sample_packing"))
    real = switch(keys.get("multipack_real_batches"))
    if keys.get("sample_packing") is not None:
        draft.put("data.packing", packs, keys, "sample_packing")
    draft.assume("data.packing", False)
    multiple = whole(keys.get("pad_to_multiple_of")) or 64
    fills = switch(keys.get("pad_to_sequence_len"))
    if packs:
        draft.assume("data.packing_strategy", "bfd")
        if (real is False or (real is None and attention_packs(draft))) and length and rows and rows > 1:
            draft.put("seq_len", length * rows, keys, "sequence_len", "micro_batch_size")
            draft.put("micro_batch", 1, keys, "sample_packing")
    elif fills and length and length <= 65536:
        draft.put("data.pad_to_multiple_of", multiple * -(-length // multiple), keys, "pad_to_sequence_len")
    elif fills is None:
        draft.assume("data.pad_to_multiple_of", multiple)
    draft.take("data.group_by_length", keys, "group_by_length")
    draft.take("data.prepared", keys, "skip_prepare_dataset")
    draft.take("data.num_proc", keys, "dataset_num_proc", "dataset_processes")
    draft.take("data.workers", keys, "dataloader_num_workers")
    draft.take("data.drop_last", keys, "dataloader_drop_last")
    draft.take("data.tokens", keys, "total_num_tokens")
    draft.take("data.seed", keys, "seed")
    draft.assume("data.seed", 42)
    keys.get("max_packed_sequence_len")


def attention_packs(draft: Draft) -> bool:
    return draft.fields.get("attention") not in PACKS_NOT


def take_accumulation(draft: Draft, keys: Keys) -> None:
    steps, batch, rows = (
        keys.get("gradient_accumulation_steps"),
        whole(keys.get("batch_size")),
        draft.fields["micro_batch"],
    )
    if steps is not None:
        draft.put("grad_accum", steps, keys, "gradient_accumulation_steps")
    elif batch and whole(rows):
        draft.put("grad_accum", max(1, batch // (whole(rows) or 1)), keys, "batch_size")
    assume_default(draft, "grad_accum")


def take_run(draft: Draft, keys: Keys) -> None:
    draft.take("data.epochs", keys, "num_epochs")
    assume_default(draft, "data.epochs")
    steps = keys.get("max_steps")
    if steps is not None and whole(steps) not in (0, -1):
        draft.put("run.max_steps", steps, keys, "max_steps")
    epochs = number(draft.fields["data.epochs"]) or 1.0
    take_saves(draft, keys, epochs)
    take_evaluations(draft, keys, epochs)


def take_saves(draft: Draft, keys: Keys, epochs: float) -> None:
    """`normalize_config`: so many an epoch are a share of all steps; one share alone is the default, every epoch."""
    steps, an_epoch = number(keys.get("save_steps")), number(keys.get("saves_per_epoch"))
    strategy = keys.get("save_strategy")
    if an_epoch and an_epoch * epochs > 1:
        draft.put("run.save_strategy", "steps", keys, "saves_per_epoch")
        draft.put("run.saves_per_epoch", an_epoch, keys, "saves_per_epoch")
    elif steps:
        draft.put("run.save_strategy", "steps", keys, "save_steps")
        if steps < 1:
            draft.put("run.saves_per_epoch", 1 / (steps * epochs), keys, "save_steps")
        else:
            draft.put("run.save_steps", keys.get("save_steps"), keys, "save_steps")
    elif word(strategy) == "best":
        draft.put("run.save_strategy", "epoch", keys, "save_strategy")
        draft.not_modelled(keys, "save_strategy", "a checkpoint is written where an evaluation is the best so far")
    elif strategy is not None:
        draft.put("run.save_strategy", word(strategy) or strategy, keys, "save_strategy")
    draft.assume("run.save_strategy", "epoch")
    draft.take("run.save_total_limit", keys, "save_total_limit")
    draft.assume("run.save_total_limit", 4)
    draft.take("run.save_only_model", keys, "save_only_model")


def take_evaluations(draft: Draft, keys: Keys, epochs: float) -> None:
    held_back, sets = keys.get("val_set_size"), keys.document.get("test_datasets")
    share = number(held_back) or 0.0
    names = ("evals_per_epoch", "eval_steps", "eval_strategy", "evaluation_strategy")
    steps, an_epoch = number(keys.get("eval_steps")), number(keys.get("evals_per_epoch"))
    strategy = word(keys.get("eval_strategy", "evaluation_strategy"))
    if not share and not is_on(sets):
        keys.ignore(*names, "eval_batch_size", "eval_sample_packing", "eval_sequence_len", "eval_max_new_tokens")
        draft.assume("run.eval_strategy", "no", f"{NAME} {RELEASE}: nothing is held back to evaluate on")
        draft.assume("run.eval_batch", draft.fields["micro_batch"])
        return
    if an_epoch and an_epoch * epochs > 1:
        draft.put("run.eval_strategy", "steps", keys, "evals_per_epoch")
        draft.put("run.evals_per_epoch", an_epoch, keys, "evals_per_epoch")
    elif steps:
        draft.put("run.eval_strategy", "steps", keys, "eval_steps")
        if steps < 1:
            draft.put("run.evals_per_epoch", 1 / (steps * epochs), keys, "eval_steps")
        else:
            draft.put("run.eval_steps", keys.get("eval_steps"), keys, "eval_steps")
    elif strategy:
        draft.put("run.eval_strategy", strategy, keys, "eval_strategy", "evaluation_strategy")
    draft.assume("run.eval_strategy", "no")
    if share > 1:
        draft.put("data.eval_samples", held_back, keys, "val_set_size")
    take_eval_batch(draft, keys)


def take_eval_batch(draft: Draft, keys: Keys) -> None:
    """As training's, where it says no other; packed rows are laid end to end here too."""
    packs, evals = draft.fields["data.packing"], switch(keys.get("eval_sample_packing"))
    keys.ignore("eval_sequence_len", "eval_max_new_tokens")
    if packs and attention_packs(draft) and evals is not False:
        draft.assume("run.eval_batch", 1)
        keys.get("eval_batch_size")
        return
    draft.take("run.eval_batch", keys, "eval_batch_size")
    draft.assume("run.eval_batch", keys.get("micro_batch_size") or draft.fields["micro_batch"])
    if (
        packs
        and evals is False
        and draft.fields["run.eval_strategy"] != "no"
        and draft.fields["seq_len"] != keys.get("sequence_len")
    ):
        draft.not_modelled(keys, "eval_sample_packing", "rows of an evaluation are shorter than those of training")


def take_sharing(draft: Draft, keys: Keys, request: Request) -> None:
    path, fsdp = keys.get("deepspeed"), keys.get("fsdp")
    inner = keys.document.inside("fsdp_config")
    version = whole(keys.get("fsdp_version"))
    if path:
        name = PurePath(path).stem if isinstance(path, str) else ""
        if request.open(path) is None and name in SHIPPED:
            take_shipped(draft, keys, name)
        else:
            take_deepspeed(draft, keys, "deepspeed", request)
    elif is_on(fsdp) or (inner is not None and inner.tree):
        take_fsdp(draft, keys, version=version or 1, name="fsdp" if is_on(fsdp) else "fsdp_config")
        if version and "parallel.fsdp_version" not in draft.places:
            draft.put("parallel.fsdp_version", version, keys, "fsdp_version")
        take_fsdp_words(draft, keys, fsdp)
        draft.assume("parallel.state_dict_type", "full")
        keys.ignore("fsdp_config.cpu_offload_pin_memory", "fsdp_config.fsdp_cpu_offload_pin_memory")
    elif keys.get("fsdp_config") is not None:
        keys.ignore("fsdp_config")


def take_fsdp_words(draft: Draft, keys: Keys, fsdp: object) -> None:
    """`fsdp: [full_shard, auto_wrap, offload]`, the older way."""
    words = [word(each) for each in fsdp] if isinstance(fsdp, list) else word(fsdp).split()
    if "offload" in words:
        draft.put("parallel.offload", "parameters", keys, "fsdp")
    if "shard_grad_op" in words and "parallel.reshard_after_forward" not in draft.places:
        draft.put("parallel.reshard_after_forward", False, keys, "fsdp")
    if {"hybrid_shard", "hybrid_shard_zero2"} & set(words):
        draft.put("parallel.data", "hsdp", keys, "fsdp")


def take_shipped(draft: Draft, keys: Keys, name: str) -> None:
    stage, offload = SHIPPED[name]
    put_stage(draft, keys, stage, "deepspeed")
    if offload != "none":
        draft.put("parallel.offload", offload, keys, "deepspeed")
    if name.endswith("_params"):
        draft.not_modelled(keys, "deepspeed", "weights wait in host memory, and the optimizer's states do not")
    if name.endswith("_compile"):
        draft.not_modelled(keys, "deepspeed", "torch.compile under DeepSpeed")


def take_mesh(draft: Draft, keys: Keys) -> None:
    for field, names in (
        ("parallel.tensor", ("tensor_parallel_size",)),
        ("parallel.context", ("context_parallel_size", "sequence_parallel_degree")),
        ("parallel.expert", ("expert_parallel_size",)),
    ):
        size = keys.get(*names)
        if size is not None and whole(size) not in (0, 1):
            draft.put(field, size, keys, *names)
    copies = whole(keys.get("dp_replicate_size"))
    if copies is not None and copies > 1 and draft.fields.get("parallel.data") == "fsdp":
        draft.put("parallel.data", "hsdp", keys, "dp_replicate_size")
    kwargs = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
    draft.take("parallel.sync_each_batch", keys, kwargs)
    keys.ignore("accelerator_config")
    if is_on(keys.document.get("use_ray")):
        draft.take("hardware.gpus", keys, "ray_num_workers")
    keys.ignore("ray_num_workers")
    finds, cards = is_on(keys.document.get("ddp_find_unused_parameters")), whole(draft.fields.get("hardware.gpus")) or 1
    if finds and cards > 1 and draft.fields.get("parallel.data") in (None, "ddp"):
        draft.not_modelled(keys, "ddp_find_unused_parameters", "DDP looks for weights without a gradient")
    keys.ignore("ddp_find_unused_parameters")


def take_kernels(draft: Draft, keys: Keys) -> None:
    """LoRA's own kernels are on where nothing speaks against them (`check_auto_enable_lora_kernels`)."""
    plugins, chosen, names = plugins_of(keys), list[str](), list[str]()
    for name, kernel in LIGER.items():
        if is_on(keys.get(name)) and "liger" in plugins and kernel not in chosen:
            chosen.append(kernel)
            names.append(name)
    chosen = by_whole(chosen)
    if "cut_cross_entropy" in plugins and switch(keys.get("cut_cross_entropy")) is not False:
        chosen.append("cut_cross_entropy")
        names.append("plugins")
    keys.get("cut_cross_entropy")
    given = [name for name in LORA_KERNELS if keys.get(name) is not None]
    keys.get("lora_embedding_kernel")
    by_itself = not given and fuses_adapters(draft, keys)
    if by_itself or any(is_on(keys.get(name)) for name in given):
        chosen.append("lora_triton")
        names += given
    if names:
        draft.put("kernels", chosen, keys, *names)
    else:
        draft.assume("kernels", chosen)
    experts = word(keys.get("experts_implementation"))
    if experts not in ("", "grouped_mm"):
        draft.not_modelled(keys, "experts_implementation", "kernels of experts' layers")
    if is_on(keys.document.get("use_kernels")) and "kernels" not in plugins:
        draft.not_modelled(keys, "use_kernels", "kernels of the Hub take the place of layers")
    keys.ignore("use_kernels")


def fuses_adapters(draft: Draft, keys: Keys) -> bool:
    is_adapter = draft.fields.get("method") in ("lora", "qlora")
    in_eight_bits = draft.fields.get("quantization.format") == "int8"
    against = ("rl", "trust_remote_code", "nvfp4_merge_aware")
    is_flat = draft.fields.get("parallel.data") == "fsdp" and draft.fields.get("parallel.fsdp_version") == 1
    return (
        is_adapter and not in_eight_bits and not is_flat and not any(is_on(keys.document.get(each)) for each in against)
    )
