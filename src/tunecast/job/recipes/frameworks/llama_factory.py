"""LLaMA-Factory's YAML and JSON: `llamafactory-cli train x.yaml key=value`. Its v1 schema: llama_factory_v1.py.

Keys      those of transformers' Trainer, and llamafactory/hparams/finetuning_args.py, `FinetuningArguments`;
          llamafactory/hparams/model_args.py, `ModelArguments`; llamafactory/hparams/data_args.py, `DataArguments`
Casts     llamafactory/model/adapter.py, `init_adapter`: what is trained becomes float32 unless `pure_bf16`
Batches   llamafactory/train/sft/workflow.py, `run_sft`; llamafactory/data/processor/supervised.py,
          `PackedSupervisedDatasetProcessor`
Command   llamafactory/launcher.py, `launch`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from tunecast.job.recipes import huggingface, huggingface_keys
from tunecast.job.recipes.cards import is_count
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks import llama_factory_v1
from tunecast.job.recipes.frameworks.llama_factory_frozen import take_blocks, take_frozen
from tunecast.job.recipes.frameworks.llama_factory_tasks import DEFAULTS as TASK_DEFAULTS
from tunecast.job.recipes.frameworks.llama_factory_tasks import WORDS as TASK_WORDS
from tunecast.job.recipes.frameworks.llama_factory_tasks import take_stage, take_stage_keys
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.parts.accelerate import read_accelerate
from tunecast.job.recipes.parts.megatron import SPLITS, take_megatron
from tunecast.job.recipes.parts.megatron import WITHOUT_EFFECT as MEGATRON_WITHOUT_EFFECT
from tunecast.job.recipes.request import Invocation, ReadRequest
from tunecast.job.recipes.values import number, whole, word
from tunecast.job.recipes.words import Word, assignments_of, flags_of

NAME = "llama-factory"
RELEASE = "0.9.5"
WORDS = {
    **huggingface_keys.WORDS,
    "seq_len": "cutoff_len",
    "lora.rank": "lora_rank",
    "kernels": huggingface_keys.liger_word("enable_liger_kernel"),
    "gradient_checkpointing": lambda on: {"disable_gradient_checkpointing": not on},
    **TASK_WORDS,
}

_FINETUNING = "llamafactory/hparams/finetuning_args.py"
_MODEL = "llamafactory/hparams/model_args.py"
_DATA = "llamafactory/hparams/data_args.py: DataArguments"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "task": ("sft", f"{_FINETUNING}: FinetuningArguments.stage"),
    "method": ("lora", f"{_FINETUNING}: FinetuningArguments.finetuning_type"),
    "oft_block_size": (32, f"{_FINETUNING}: OFTArguments.oft_block_size"),
    "lora.rank": (8, f"{_FINETUNING}: LoraArguments.lora_rank"),
    "lora.dropout": (0.0, f"{_FINETUNING}: LoraArguments.lora_dropout"),
    "lora.targets": ("all", f"{_FINETUNING}: LoraArguments.lora_target"),
    "lora.dora": (False, f"{_FINETUNING}: LoraArguments.use_dora"),
    "lora.rslora": (False, f"{_FINETUNING}: LoraArguments.use_rslora"),
    "quantization.format": ("nf4", f"{_MODEL}: QuantizationArguments.quantization_type"),
    "quantization.double_quant": (True, f"{_MODEL}: QuantizationArguments.double_quantization"),
    "checkpoint_reentrant": (True, f"{_MODEL}: BaseModelArguments.use_reentrant_gc"),
    "seq_len": (2048, f"{_DATA}.cutoff_len"),
    **TASK_DEFAULTS,
}
ARGUMENTS: huggingface_keys.Defaults = {
    **huggingface_keys.TRAINING_ARGUMENTS,
    "gradient_checkpointing": (True, f"{_MODEL}: BaseModelArguments.disable_gradient_checkpointing"),
}
WITHOUT_EFFECT = (
    *huggingface_keys.WITHOUT_EFFECT,
    *MEGATRON_WITHOUT_EFFECT,
    *("dataset", "dataset_dir", "eval_dataset", "media_dir", "template", "tool_format", "default_system"),
    *("enable_thinking", "preserve_thinking", "mask_history", "train_on_prompt", "mix_strategy", "interleave_probs"),
    *("buffer_size", "streaming", "preprocessing_batch_size", "tokenized_path", "data_shared_file_system"),
    *("ignore_pad_token_for_loss", "eval_num_beams", "eval_on_each_dataset", "disable_shuffling", "cache_dir"),
    *("use_fast_tokenizer", "split_special_tokens", "add_tokens", "add_special_tokens", "new_special_tokens_config"),
    *("init_special_tokens", "model_revision", "low_cpu_mem_usage", "rope_scaling", "moe_aux_loss_coef"),
    *("infer_backend", "infer_dtype", "offload_folder", "use_kv_cache", "*_hub_token", "print_param_status"),
    *(
        "loraplus_*",
        "pissa_*",
        "create_new_adapter",
        "pref_*",
        "dpo_*",
        "kto_*",
        "simpo_*",
        "ppo_*",
        "ld_alpha",
        "add_generation_prompt",
    ),
    *("galore_scale", "galore_update_interval", "galore_proj_type", "apollo_scale*", "apollo_update_interval"),
    *("apollo_proj*", "swanlab_*", "use_swanlab", "compute_accuracy", "early_stopping_steps", "plot_loss"),
    *("include_effective_tokens_per_second", "asft_alpha", "eaft_alpha", "ray_*", "master_addr", "master_port"),
    *("profiler_*", "enable_torch_profiler", "profile_modules", "quantization_device_map", "vllm_*", "sglang_*"),
    *("generation_*", "max_new_tokens", "temperature", "top_p", "top_k", "do_sample", "num_beams", "max_length"),
    *("use_v1_kernels",),
    *("repetition_penalty", "length_penalty", "image_min_pixels", "video_min_pixels", "export_*", "crop_to_patches"),
)
"""New tokens do nothing without `resize_vocab`, and `use_v1_kernels` nothing but on Ascend's cards
(llamafactory/v1/plugins/model_plugins/kernels/interface.py, `_AUTO_KERNELS`)."""

OWN_KEYS = ("stage", "finetuning_type", "cutoff_len", "lora_target", "quantization_bit", "lora_rank")
ATTENTION = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
REFUSED: Mapping[str, str] = {
    "mixture_of_depths": "mixture of depths",
    "use_kt": "KTransformers, which keeps experts on the CPU",
    "use_hyper_parallel": "HyperParallel's own distribution",
}
REPORTED: Mapping[str, str] = {
    "shift_attn": "S²-attention: rows are cut into groups",
    "use_unsloth_gc": "inputs of checkpointed layers wait in host memory",
    "upcast_layernorm": "norms are in float32",
    "upcast_lmhead_output": "logits are in float32",
    "resize_vocab": "the vocabulary grows",
    "train_from_scratch": "weights are made, not loaded",
    "use_adam_mini": "Adam-mini, whose second moments are one a block",
    "use_asft_loss": "a loss of its own, with a reference model",
    "use_eaft_loss": "a loss of its own",
    "use_dft_loss": "a loss of its own",
    "adapter_name_or_path": "adapters that exist are merged or trained further: their rank is that of their file",
    "fp8_enable_fsdp_float8_all_gather": "weights are gathered in FP8",
}
TRAINING = ("train", "sft", "dpo", "rm")
"""Of llamafactory-cli; all but the first are v1's."""
OWN_SCRIPTS = ("src/train.py", "src/train_bash.py", "llamafactory/launcher.py", "llmtuner/launcher.py")


def recognises(document: Document) -> bool:
    if llama_factory_v1.recognises(document):
        return True
    if not document.has("model_name_or_path") or document.has("export_dir"):
        return False
    return any(map(document.has, OWN_KEYS)) and any(map(document.has, ("stage", "do_train", "dataset", "cutoff_len")))


def use_without_training(document: Document) -> str | None:
    if document.get("peft_config.export_dir") is not None:
        return "`llamafactory-cli merge` writes a model with its adapters merged"
    if document.has("model_name_or_path") and document.has("export_dir"):
        return "`llamafactory-cli export` writes a model, merged or quantised"
    if document.has("model_name_or_path") and document.has("infer_backend") and document.has("template"):
        return "`llamafactory-cli chat` or `api` answers with a model"
    return None


def invocation(words: Sequence[Word]) -> Invocation | None:
    program, command = PurePath(words[0]).name, ""
    if program == "llamafactory.launcher" and len(words) > 1 and words[1].endswith((".yaml", ".yml", ".json")):
        words = words[1:]  # as a module it trains, and is told no command
    elif program in ("llamafactory-cli", "lmf", "llamafactory.cli", "llamafactory.launcher"):
        if len(words) < 2 or words[1] not in TRAINING:
            return None
        command, words = str(words[1]), words[2:]
    elif words[0].endswith(OWN_SCRIPTS):
        words = words[1:]
    else:
        return None
    if words and words[0].endswith((".yaml", ".yml", ".json")):
        set_ = assignments_of(words[1:])
        return Invocation(str(words[0]), set_.values, set_.lines, command)
    flags = flags_of(words)
    known = any(name in flags.values for name in OWN_KEYS)
    return Invocation(None, flags.values, flags.lines) if known else None


def read(draft: Draft, request: ReadRequest) -> None:
    if llama_factory_v1.recognises(request.document):
        llama_factory_v1.read(draft, request)
        return
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    draft.put("stack", NAME, keys, "model_name_or_path")
    draft.take("model", keys, "model_name_or_path")
    take_task(draft, keys)
    take_method(draft, keys)
    take_attention(draft, keys)
    take_rows(draft, keys)
    is_megatron = any(map(keys.has, SPLITS))
    if is_megatron:
        draft.put("stack", "megatron", keys, *SPLITS)
        take_megatron(draft, keys)
    take_optimizer(draft, keys)
    take_checkpointing(draft, keys, request, is_megatron)
    take_weights(draft, keys, request)
    take_cards(draft, keys, request)
    take_stage_keys(draft, keys)
    for name, why in REPORTED.items():
        if is_on(keys.get(name)):
            draft.not_modelled(keys, name, why)
    if is_on(keys.get("use_unsloth")):
        draft.put("stack", "unsloth", keys, "use_unsloth")


def take_task(draft: Draft, keys: Keys) -> None:
    if not is_on(keys.get("do_train", default=True)) or (keys.get("do_predict") and not keys.has("do_train")):
        draft.refuse("prediction", "nothing is trained")
    take_stage(draft, keys)
    for name, why in REFUSED.items():
        if is_on(keys.get(name)):
            draft.refuse(name, why)
    keys.ignore("kt_config", "kt_cpu_activation", "kt_weight_path", "kt_non_expert_weight_path")
    keys.ignore("badam_switch_mode", "badam_switch_interval", "badam_start_block", "badam_verbose")


def take_method(draft: Draft, keys: Keys) -> None:
    kind = keys.get("finetuning_type")
    method = word(kind) or "lora"
    if method == "oft":
        take_rotations(draft, keys)
        keys.ignore(*LORA_KEYS)
    elif method == "freeze":
        take_frozen(draft, keys)
        keys.ignore(*LORA_KEYS)
    elif method == "full":
        draft.put("method", "full", keys, "finetuning_type")
        take_blocks(draft, keys)
        keys.ignore(*LORA_KEYS)
    elif method == "lora":
        bits = keys.get("quantization_bit")
        if kind is None and bits is None:
            draft.assume("method", "lora")
        else:
            draft.put("method", "lora" if bits is None else "qlora", keys, "quantization_bit", "finetuning_type")
        take_lora(draft, keys)
    else:
        draft.put("method", kind, keys, "finetuning_type")
    take_quantization(draft, keys)


def take_rotations(draft: Draft, keys: Keys) -> None:
    """OFT, which turns the inputs of a layer in blocks: for b inputs b (b - 1) / 2 weights, as many as LoRA of rank
    b / 4 has for a square layer (peft/tuners/oft/layer.py, `OFTRotationModule`)."""
    size = whole(keys.get("oft_block_size", default=DEFAULTS["oft_block_size"][0]))
    if keys.get("oft_rank") not in (None, 0) or size is None or size < 4:
        draft.refuse("oft", "rotations by their number in each layer are not modelled")
        return
    packed = keys.get("quantization_bit") is not None
    draft.put("method", "qlora" if packed else "lora", keys, "quantization_bit", "finetuning_type")
    draft.put("lora.rank", size // 4, keys, "oft_block_size", "finetuning_type")
    draft.assume("lora.alpha", size // 2)
    draft.take("lora.targets", keys, "oft_target", read=targets)
    draft.assume("lora.targets", "all-linear")
    draft.take("lora.dropout", keys, "module_dropout")
    draft.assume("lora.dropout", 0.0)
    draft.not_modelled(keys, "finetuning_type", "OFT is taken as LoRA of as many weights: its rotations take more time")


LORA_KEYS = (
    *("lora_rank", "lora_alpha", "lora_dropout", "lora_target", "use_dora", "use_rslora", "additional_target"),
)


def take_lora(draft: Draft, keys: Keys) -> None:
    """`FinetuningArguments.__post_init__`: alpha is twice the rank; `all` is every linear layer but the head
    (llamafactory/model/model_utils/misc.py, `find_all_linear_modules`)."""
    draft.take("lora.rank", keys, "lora_rank")
    huggingface.assume(draft, "lora.rank", DEFAULTS)
    draft.take("lora.alpha", keys, "lora_alpha")
    if "lora.alpha" not in draft.fields and (rank := number(draft.fields["lora.rank"])) is not None:
        draft.assume("lora.alpha", 2 * rank)
    draft.take("lora.targets", keys, "lora_target", read=targets)
    draft.assume("lora.targets", "all-linear")
    draft.take("lora.dropout", keys, "lora_dropout")
    draft.take("lora.dora", keys, "use_dora")
    draft.take("lora.rslora", keys, "use_rslora")
    for field in ("lora.dropout", "lora.dora", "lora.rslora"):
        huggingface.assume(draft, field, DEFAULTS)
    if keys.get("additional_target"):
        draft.not_modelled(keys, "additional_target", "whole modules are trained beside the adapters")


def targets(value: object) -> object:
    """Separated by commas."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    return "all-linear" if names == ["all"] else names


def take_quantization(draft: Draft, keys: Keys) -> None:
    """llamafactory/model/model_utils/quantization.py, `configure_quantization`. What is not quantised keeps its dtype:
    `prepare_model_for_kbit_training` is not called."""
    bits, method = keys.get("quantization_bit"), word(keys.get("quantization_method"))
    if bits is None:
        keys.ignore("quantization_type", "double_quantization", "quantization_method")
        return
    if method not in ("", "bnb", "bitsandbytes"):
        draft.refuse(method, "weights quantised by this package while they load are not modelled")
    if whole(bits) == 8:
        draft.put("quantization.format", "int8", keys, "quantization_bit")
        keys.ignore("quantization_type", "double_quantization")
    elif whole(bits) == 4:
        draft.put("quantization.format", keys.get("quantization_type", default="nf4"), keys, "quantization_bit")
        draft.take("quantization.double_quant", keys, "double_quantization")
        huggingface.assume(draft, "quantization.double_quant", DEFAULTS)
    else:
        draft.put("quantization.format", bits, keys, "quantization_bit")
    draft.assume("quantization.prepare_kbit", False)


def take_attention(draft: Draft, keys: Keys) -> None:
    """`auto` is transformers' own choice (llamafactory/model/model_utils/attention.py,
    `configure_attn_implementation`)."""
    chosen = keys.get("flash_attn")
    if word(chosen) in ATTENTION:
        draft.put("attention", ATTENTION[word(chosen)], keys, "flash_attn")
    elif word(chosen) in ("", "auto"):
        draft.assume("attention", "sdpa")
    else:
        draft.put("attention", chosen, keys, "flash_attn")


def take_rows(draft: Draft, keys: Keys) -> None:
    """Pre-training packs where nothing is said. Other batches are padded to a multiple of 8."""
    draft.take("seq_len", keys, "cutoff_len")
    huggingface.assume(draft, "seq_len", DEFAULTS)
    packing, neat = keys.get("packing"), is_on(keys.get("neat_packing"))
    pretrains = draft.fields.get("task") == "pretrain"
    if neat or packing is not None:
        draft.put("data.packing", neat or is_on(packing), keys, "neat_packing" if neat else "packing")
    draft.assume("data.packing", pretrains)
    if draft.fields["data.packing"]:
        draft.assume("data.packing_strategy", "wrapped" if pretrains else "bfd")
    if neat and not str(draft.fields["attention"]).startswith("flash"):
        draft.not_modelled(keys, "neat_packing", "a mask over whole rows takes SDPA's other kernels")
    if not pretrains:
        draft.assume("data.pad_to_multiple_of", 8)
    draft.take("data.num_proc", keys, "preprocessing_num_workers")
    take_samples(draft, keys)


def take_samples(draft: Draft, keys: Keys) -> None:
    """`max_samples` is of each data set, and the most there are."""
    most, names = keys.get("max_samples"), keys.get("dataset")
    count = len(names) if isinstance(names, list) else str(names).count(",") + 1
    if is_count(most):
        draft.put("data.samples", most * max(count, 1), keys, "max_samples")
    elif most is not None:
        draft.put("data.samples", most, keys, "max_samples")
    held_out = keys.get("val_size")
    share = number(held_out)
    if share:
        draft.put("data.held_back", held_out, keys, "val_size")


def take_optimizer(draft: Draft, keys: Keys) -> None:
    """llamafactory/train/trainer_utils.py, `create_custom_optimizer`."""
    for name in ("galore", "apollo"):
        if is_on(keys.get(f"use_{name}")):
            layerwise = is_on(keys.get(f"{name}_layerwise"))
            kind = f"{name}_adamw{'_layerwise' if layerwise else ''}"
            draft.put("optimizer", kind, keys, f"use_{name}")
            draft.not_modelled(keys, f"use_{name}", "which weights are projected, and to which rank")
        keys.ignore(f"{name}_rank", f"{name}_target", f"{name}_layerwise")
    if is_on(keys.get("use_muon")):
        draft.put("optimizer", "muon", keys, "use_muon")


def take_checkpointing(draft: Draft, keys: Keys, request: ReadRequest, is_megatron: bool) -> None:
    """It is on unless it is switched off (llamafactory/model/model_utils/checkpointing.py,
    `prepare_model_for_training`), whatever the Trainer's own switch says; and of the newer kind with FSDP 2."""
    chosen = draft.fields.get("optimizer"), draft.places.get("optimizer")
    huggingface.take_training_arguments(draft, keys, request, ARGUMENTS)
    if chosen[1] is not None:
        draft.fields["optimizer"], draft.places["optimizer"] = chosen[0], chosen[1]
    if request.launch.accelerate is not None:
        read_accelerate(draft, request.launch.accelerate, request)
    reentrant = keys.get("use_reentrant_gc")
    off = is_on(keys.get("disable_gradient_checkpointing"))
    if is_megatron:
        return
    if is_on(keys.get("enable_liger_kernel")):
        draft.put("kernels", ["liger"], keys, "enable_liger_kernel")
    if not is_on(keys.document.get("gradient_checkpointing")):
        draft.fields.pop("gradient_checkpointing", None)
        if keys.get("disable_gradient_checkpointing") is not None:
            draft.put("gradient_checkpointing", not off, keys, "disable_gradient_checkpointing")
        huggingface.assume(draft, "gradient_checkpointing", ARGUMENTS)
    if not draft.fields["gradient_checkpointing"]:
        return
    if draft.fields.get("parallel.fsdp_version") == 2:
        draft.assume("checkpoint_reentrant", False)
    elif reentrant is not None:
        draft.put("checkpoint_reentrant", is_on(reentrant), keys, "use_reentrant_gc")
    huggingface.assume(draft, "checkpoint_reentrant", DEFAULTS)


def take_weights(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    if is_on(keys.get("pure_bf16")):
        draft.put("weights_dtype", "bfloat16", keys, "pure_bf16")
        if draft.fields.get("autocast") is None:
            draft.put("autocast", None, keys, "pure_bf16")
    if is_on(keys.get("fp8")):
        draft.put("matmul_dtype", "float8", keys, "fp8")
        if word(keys.get("fp8_backend")) in ("te", "msamp"):
            draft.not_modelled(keys, "fp8_backend", "other kernels of FP8 than torchao's")
    else:
        keys.ignore("fp8_backend")


def take_cards(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """`ray_num_workers` counts all cards, where Ray is used. The program itself starts torchrun on several cards, and
    asks for expandable segments then (`OPTIM_TORCH`)."""
    workers = keys.get("ray_num_workers")
    if is_count(workers) and workers > 1 and request.launch.gpus is None:
        draft.offer("hardware.gpus", workers, keys, "ray_num_workers")
    shared = str(draft.fields.get("parallel.data", "")).startswith("zero")
    several = (request.launch.gpus or 0) * (request.launch.nodes or 1) > 1
    wanted = word(request.launch.environment.get("OPTIM_TORCH", "1")) in ("1", "true", "y")
    if (shared or several) and request.launch.accelerate is None and wanted:
        draft.assume("allocator", "expandable_segments")
