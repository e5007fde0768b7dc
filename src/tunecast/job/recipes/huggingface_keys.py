"""Which keys transformers' TrainingArguments, TRL's SFTConfig and ModelConfig have: their defaults, those that move
nothing, and which say a field.

Defaults are those of the releases in job/releases.py: transformers/training_args.py, `TrainingArguments`;
trl/trainer/base_config.py, `_BaseConfig`; trl/trainer/sft_config.py, `SFTConfig`; trl/trainer/model_config.py,
`ModelConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Defaults = Mapping[str, tuple[object, str]]
"""By field: what it is where no key says, and the class and attribute that say so."""

_ARGUMENTS = "transformers/training_args.py: TrainingArguments"
TRAINING_ARGUMENTS: Defaults = {
    "micro_batch": (8, f"{_ARGUMENTS}.per_device_train_batch_size"),
    "grad_accum": (1, f"{_ARGUMENTS}.gradient_accumulation_steps"),
    "optimizer": ("adamw_torch_fused", f"{_ARGUMENTS}.default_optim"),
    "max_grad_norm": (1.0, f"{_ARGUMENTS}.max_grad_norm"),
    "autocast": (None, f"{_ARGUMENTS}.bf16"),
    "gradient_checkpointing": (False, f"{_ARGUMENTS}.gradient_checkpointing"),
    "compile": (False, f"{_ARGUMENTS}.torch_compile"),
    "data.epochs": (3.0, f"{_ARGUMENTS}.num_train_epochs"),
    "data.seed": (42, f"{_ARGUMENTS}.seed"),
    "data.workers": (0, f"{_ARGUMENTS}.dataloader_num_workers"),
    "data.drop_last": (False, f"{_ARGUMENTS}.dataloader_drop_last"),
    "data.group_by_length": (False, f"{_ARGUMENTS}.train_sampling_strategy"),
    "run.eval_strategy": ("no", f"{_ARGUMENTS}.eval_strategy"),
    "run.eval_steps": (500, f"{_ARGUMENTS}.logging_steps"),
    "run.eval_batch": (8, f"{_ARGUMENTS}.per_device_eval_batch_size"),
    "run.save_strategy": ("steps", f"{_ARGUMENTS}.save_strategy"),
    "run.save_steps": (500, f"{_ARGUMENTS}.save_steps"),
    "run.save_only_model": (False, f"{_ARGUMENTS}.save_only_model"),
}
_BASE, _SFT, _MODEL = (
    "trl/trainer/base_config.py: _BaseConfig",
    "trl/trainer/sft_config.py: SFTConfig",
    "trl/trainer/model_config.py: ModelConfig",
)
TRL_ARGUMENTS: Defaults = {
    **TRAINING_ARGUMENTS,
    "autocast": ("bfloat16", f"{_BASE}.bf16"),
    "gradient_checkpointing": (True, f"{_BASE}.gradient_checkpointing"),
    "run.eval_steps": (10, f"{_BASE}.logging_steps"),
}
"""What every trainer of TRL's has."""
SFT_CONFIG: Defaults = {
    "seq_len": (1024, f"{_SFT}.max_length"),
    "data.packing": (False, f"{_SFT}.packing"),
    "data.packing_strategy": ("bfd", f"{_SFT}.packing_strategy"),
    "offload_activations": (False, f"{_SFT}.activation_offloading"),
}
MODEL_CONFIG: Defaults = {
    "method": ("full", f"{_MODEL}.use_peft"),
    "weights_dtype": ("float32", f"{_MODEL}.dtype"),
    "lora.rank": (16, f"{_MODEL}.lora_r"),
    "lora.alpha": (32, f"{_MODEL}.lora_alpha"),
    "lora.dropout": (0.05, f"{_MODEL}.lora_dropout"),
    "quantization.format": ("nf4", f"{_MODEL}.bnb_4bit_quant_type"),
    "quantization.double_quant": (False, f"{_MODEL}.use_bnb_nested_quant"),
}

WITHOUT_EFFECT = (
    *("output_dir", "logging_*", "log_*", "report_to", "run_name", "project", "trackio_*", "hub_*", "push_to_hub*"),
    *("do_train", "do_eval", "do_predict", "eval_do_concat_batches", "eval_use_gather_object", "prediction_loss_only"),
    *("eval_accumulation_steps", "include_*", "batch_eval_metrics", "metric_for_best_model", "greater_is_better"),
    *("learning_rate", "lr_scheduler_kwargs", "adam_*", "weight_decay", "warmup_*", "average_tokens_across_devices"),
    *("save_safetensors", "save_on_each_node", "enable_jit_checkpoint", "ignore_data_skip", "overwrite_output_dir"),
    *("restore_callback_states_from_checkpoint", "dataloader_*", "remove_unused_columns", "label_names"),
    *("length_column_name", "ddp_timeout", "ddp_backend", "ddp_broadcast_buffers", "ddp_static_graph", "local_rank"),
    *("ddp_find_unused_parameters", "skip_memory_metrics", "debug", "jit_mode_eval", "half_precision_backend"),
    *("fp16_opt_level", "fp16_backend", "bf16_full_eval", "fp16_full_eval", "past_index", "disable_tqdm"),
    *("neftune_noise_alpha", "use_legacy_prediction_loop", "accelerator_config.*", "hub_token", "__*", "_n_gpu"),
)
"""Of TrainingArguments. In training, `evaluation_loop` casts no weights for `bf16_full_eval` (transformers/trainer.py),
and metrics alone need `eval_accumulation_steps`."""
SFT_WITHOUT_EFFECT = (
    *("dataset_text_field", "dataset_batch_size", "eos_token", "pad_token", "chat_template*", "truncation_mode"),
    *("shuffle_dataset", "assistant_only_loss", "chars_per_token", "num_of_sequences"),
    *("dataset_kwargs.*", "model_revision", "trust_remote_code", "lora_task_type", "bnb_4bit_quant_storage"),
    *("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming"),
    *("dataset_*_split", "ignore_bias_buffers", "datasets.*", "dataset_mixture.*", "dataset_mixer.*", "streaming"),
    *("dataset_splits", "dataset_configs", "test_split_size", "tokenizer_name_or_path", "bnb_4bit_compute_dtype"),
    *("num_proc", "preprocessing_num_workers", "auto_insert_empty_system_msg", "config_name", "use_auth_token"),
)
"""Of SFTConfig, ModelConfig and the scripts' own arguments."""


def liger_word(key: str) -> Callable[[Sequence[str]], Mapping[str, object] | None]:
    """A switch for all of Liger's kernels; what others are used is said elsewhere, and stays."""
    return lambda kernels: {key: True} if "liger" in kernels else None


WORDS: Mapping[str, Any] = {
    "micro_batch": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "gradient_checkpointing": "gradient_checkpointing",
    "optimizer": "optim",
    "offload_activations": "activation_offloading",
    "compile": "torch_compile",
    "attention": "attn_implementation",
    "seq_len": "max_length",
    "lora.rank": "lora_r",
    "lora.alpha": "lora_alpha",
    "kernels": liger_word("use_liger_kernel"),
    "preference.beta": "beta",
    "preference.reference": lambda kind: {"precompute_ref_log_probs": True} if kind == "precomputed" else None,
    "rl.generations": "num_generations",
    "rl.completion_length": "max_completion_length",
    "rl.steps_per_generation": "steps_per_generation",
    "rl.iterations": "num_iterations",
    "rl.engine": lambda engine: {"use_vllm": engine == "vllm"},
    "rl.vllm.place": "vllm_mode",
    "rl.vllm.memory_fraction": "vllm_gpu_memory_utilization",
    "rl.vllm.tensor": "vllm_tensor_parallel_size",
    "rl.vllm.sleep": "vllm_enable_sleep_mode",
}
"""Keys that say a field, where a file is to be changed: a name, or what a value takes."""
