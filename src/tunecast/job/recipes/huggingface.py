"""Keys of transformers' TrainingArguments, TRL's SFTConfig and ModelConfig, wherever they stand: in YAML, in JSON, on a
command line or in a script's call.

A trainer whose defaults differ hands its own over: `{**TRAINING_ARGUMENTS, "gradient_checkpointing": (True, "...")}`.
Defaults are those of the releases in job/releases.py: transformers/training_args.py, `TrainingArguments`;
trl/trainer/base_config.py, `_BaseConfig`; trl/trainer/sft_config.py, `SFTConfig`; trl/trainer/model_config.py,
`ModelConfig`. Names that releases before them had are read too: `evaluation_strategy`, `max_seq_length`, `torch_dtype`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.kernels import LIGER_PARTS
from tunecast.job.recipes.document import Document, json_document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.huggingface_keys import MODEL_CONFIG, SFT_CONFIG, TRAINING_ARGUMENTS, Defaults
from tunecast.job.recipes.parts.deepspeed import take_deepspeed
from tunecast.job.recipes.parts.fsdp import SHARED, take_fsdp
from tunecast.job.recipes.request import ReadRequest
from tunecast.job.recipes.values import number, switch, word
from tunecast.job.releases import RELEASES


def take_training_arguments(
    draft: Draft, keys: Keys, request: ReadRequest | None = None, defaults: Defaults = TRAINING_ARGUMENTS
) -> None:
    """Everything of `TrainingArguments` that a job tells. Without a request, `fsdp` and `deepspeed` are left to the
    caller."""
    draft.take("micro_batch", keys, "per_device_train_batch_size", "per_gpu_train_batch_size")
    draft.take("grad_accum", keys, "gradient_accumulation_steps")
    draft.take("max_grad_norm", keys, "max_grad_norm")
    take_optimizer(draft, keys)
    take_precision(draft, keys)
    take_checkpointing(draft, keys)
    take_compilation(draft, keys)
    take_kernels(draft, keys)
    take_length_of_run(draft, keys)
    take_loader(draft, keys)
    take_evaluations(draft, keys, defaults)
    take_saves(draft, keys, defaults)
    take_accelerator(draft, keys)
    if request is not None:
        take_trainers_fsdp(draft, keys, request)
        if keys.get("deepspeed"):
            take_deepspeed(draft, keys, "deepspeed", request)
    report_others(draft, keys)
    assume_all(draft, defaults, leave=("run.eval_steps", "run.save_steps"))


def assume_all(draft: Draft, defaults: Defaults, leave: tuple[str, ...] = ()) -> None:
    for field in defaults:
        if field not in leave:
            assume(draft, field, defaults)


def assume(draft: Draft, field: str, defaults: Defaults) -> None:
    if field in defaults:
        value, source = defaults[field]
        draft.assume(field, value, whose(source))


def whose(source: str) -> str:
    """`trl 1.16.0` of a source in trl; nothing of a package that is not followed: then it is the reader's own."""
    package = re.split(r"[/:.]", source)[0]
    return f"{package} {RELEASES[package].newest}" if package in RELEASES else ""


def take_optimizer(draft: Draft, keys: Keys) -> None:
    draft.take("optimizer", keys, "optim", read=lambda name: "adamw_torch" if name == "adamw_hf" else name)
    if is_on(keys.get("adafactor")):
        draft.put("optimizer", "adafactor", keys, "adafactor")
    projects = str(draft.fields.get("optimizer", "")).startswith(("galore", "apollo"))
    for name in ("optim_args", "optim_target_modules"):
        if projects and keys.get(name):
            draft.not_modelled(keys, name, "which weights are projected, and to which rank")
        else:
            keys.ignore(name)


def take_precision(draft: Draft, keys: Keys) -> None:
    """Mixed precision. Where both are switched off there is none; `auto` follows the card: bfloat16 since Ampere."""
    if is_on(keys.get("fp16")):
        draft.put("autocast", "float16", keys, "fp16")
    elif (bf16 := keys.get("bf16")) == "auto":
        draft.assume("autocast", "bfloat16", "bf16: auto, on a card since Ampere")
    elif bf16 is not None:
        draft.put("autocast", "bfloat16" if is_on(bf16) else None, keys, "bf16")
    if is_on(keys.get("tf32")) and draft.fields.get("autocast") is None and keys.has("bf16"):
        draft.not_modelled(keys, "tf32", "products of float32 are done with fewer bits")
    else:
        keys.ignore("tf32")


def take_checkpointing(draft: Draft, keys: Keys) -> None:
    draft.take("gradient_checkpointing", keys, "gradient_checkpointing")
    name = "gradient_checkpointing_kwargs"
    options = mapping_in(keys.get(name))
    if options is None:
        return
    if isinstance(reentrant := options.get("use_reentrant"), bool):
        draft.put("checkpoint_reentrant", reentrant, keys, f"{name}.use_reentrant")
    if is_on(options.get("selective")):
        draft.not_modelled(keys, f"{name}.selective", "only part of a layer is computed again")


def take_compilation(draft: Draft, keys: Keys) -> None:
    """`TrainingArguments.__post_init__`: a backend or a mode alone switches it on."""
    compiled = keys.get("torch_compile")
    backend, mode = keys.get("torch_compile_backend"), keys.get("torch_compile_mode")
    if compiled is not None or backend or mode:
        on = is_on(compiled) or bool(backend or mode)
        draft.put("compile", on, keys, "torch_compile", "torch_compile_backend", "torch_compile_mode")
    if backend not in (None, "inductor"):
        draft.not_modelled(keys, "torch_compile_backend", "another compiler than inductor")
    if mode not in (None, "default"):
        draft.not_modelled(keys, "torch_compile_mode", "CUDA graphs or searched kernels")


def take_kernels(draft: Draft, keys: Keys) -> None:
    if is_on(keys.get("use_liger_kernel", "use_liger")):
        draft.put("kernels", ["liger"], keys, "use_liger_kernel", "use_liger")
        if config := mapping_in(keys.get("liger_kernel_config")):
            draft.put("kernels", liger_parts(config), keys, "liger_kernel_config")
    else:
        keys.ignore("liger_kernel_config")


LIGER = {"rope": True, "rms_norm": True, "swiglu": True, "cross_entropy": False, "fused_linear_cross_entropy": True}
"""liger_kernel/transformers/monkey_patch.py, `apply_liger_kernel_to_llama`: what is taken where nothing is said."""


def liger_parts(config: Mapping[str, Any]) -> list[str]:
    """By the names of a job's `kernels`, of what the Trainer hands to Liger."""
    taken = LIGER | {("swiglu" if name == "geglu" else name): is_on(value) for name, value in config.items()}
    on = {name for name, value in taken.items() if value}
    return [part for part, names in LIGER_PARTS.items() if on & set(names)]


def take_length_of_run(draft: Draft, keys: Keys) -> None:
    """`max_steps` wins where it is above 0; an epoch count of 0 or less then says nothing."""
    steps, epochs = keys.get("max_steps"), keys.get("num_train_epochs")
    limited = steps is not None and not ((count := number(steps)) is not None and count <= 0)
    if limited:
        draft.put("run.max_steps", steps, keys, "max_steps")
    passes = number(epochs)
    if epochs is not None and not (limited and passes is not None and passes <= 0):
        draft.put("data.epochs", epochs, keys, "num_train_epochs")


def take_loader(draft: Draft, keys: Keys) -> None:
    draft.take("data.seed", keys, "data_seed", "seed")
    draft.take("data.workers", keys, "dataloader_num_workers")
    draft.take("data.drop_last", keys, "dataloader_drop_last")
    strategy = keys.get("train_sampling_strategy")
    if strategy is not None:
        draft.put("data.group_by_length", strategy == "group_by_length", keys, "train_sampling_strategy")
        if strategy == "sequential":
            draft.not_modelled(keys, "train_sampling_strategy", "rows come in the data set's own order")
    else:
        draft.take("data.group_by_length", keys, "group_by_length")


PER_EPOCH = {"run.eval_steps": "run.evals_per_epoch", "run.save_steps": "run.saves_per_epoch"}


def take_evaluations(draft: Draft, keys: Keys, defaults: Defaults) -> None:
    """`TrainingArguments.__post_init__`: without eval_steps, as often as it logs."""
    strategy = keys.get("eval_strategy", "evaluation_strategy")
    steps, logging = keys.get("eval_steps"), keys.get("logging_steps")
    draft.take("run.eval_batch", keys, "per_device_eval_batch_size", "per_gpu_eval_batch_size")
    if strategy is None:
        keys.ignore("eval_on_start", "eval_delay")
        return
    named = "no" if strategy is False else strategy
    draft.put("run.eval_strategy", named, keys, "eval_strategy", "evaluation_strategy")
    if named == "steps":
        take_cadence(draft, keys, "run.eval_steps", "eval_steps" if steps else "logging_steps", steps or logging)
        if "run.evals_per_epoch" not in draft.fields:
            assume(draft, "run.eval_steps", defaults)
    for name, why in (
        ("eval_on_start", "it evaluates before the first step too"),
        ("eval_delay", "it does not evaluate from the beginning"),
    ):
        if keys.get(name) and named != "no":
            draft.not_modelled(keys, name, why)


def take_saves(draft: Draft, keys: Keys, defaults: Defaults) -> None:
    strategy, steps = keys.get("save_strategy"), keys.get("save_steps")
    if strategy is not None:
        named = "no" if strategy is False else strategy
        if named == "best":
            draft.not_modelled(keys, "save_strategy", "a checkpoint is written where an evaluation was the best so far")
            named = draft.fields.get("run.eval_strategy", "no")
        draft.put("run.save_strategy", named, keys, "save_strategy")
    if draft.fields.get("run.save_strategy", "steps") == "steps":
        if steps is not None:
            take_cadence(draft, keys, "run.save_steps", "save_steps", steps)
        if "run.saves_per_epoch" not in draft.fields:
            assume(draft, "run.save_steps", defaults)
    limit = keys.get("save_total_limit")
    if limit is not None and not ((count := number(limit)) is not None and count <= 0):
        draft.put("run.save_total_limit", limit, keys, "save_total_limit")
    draft.take("run.save_only_model", keys, "save_only_model")


def take_cadence(draft: Draft, keys: Keys, field: str, name: str, steps: object) -> None:
    """Steps between two; below 1 it is a share of the whole run (transformers/trainer_callback.py,
    `TrainerState.compute_steps`)."""
    if steps is None:
        return
    share = number(steps)
    if share is None or not 0 < share < 1:
        draft.put(field, steps, keys, name)
        return
    limit, passes = number(draft.fields.get("run.max_steps")), number(draft.fields.get("data.epochs", 3.0))
    if limit is not None:
        draft.put(field, math.ceil(limit * share), keys, name)
    elif passes is not None and passes > 0:
        draft.put(PER_EPOCH[field], 1 / (share * passes), keys, name)


def take_accelerator(draft: Draft, keys: Keys) -> None:
    name = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
    draft.take("parallel.sync_each_batch", keys, name)
    if is_on(keys.get("accelerator_config.split_batches")):
        draft.not_modelled(keys, "accelerator_config.split_batches", "the batch is divided among the cards")


OTHERS: Mapping[str, str] = {
    "auto_find_batch_size": "the batch is halved until it fits",
    "torch_empty_cache_steps": "cached memory is given back in between",
    "label_smoothing_factor": "the loss makes another copy of the logits",
    "full_determinism": "slower kernels are taken",
    "use_cache": "keys and values are kept",
    "ddp_bucket_cap_mb": "gradients are summed in buckets of another size",
    "parallelism_config": "the cards form a mesh of its own",
    "use_cpu": "it trains without a card",
    "no_cuda": "it trains without a card",
    "torchdynamo": "another compiler",
    "sharded_ddp": "FairScale's sharding",
    "mp_parameters": "SageMaker's model parallelism",
}
"""Keys of TrainingArguments that no field tells, and what they do; switched off they do nothing."""


def report_others(draft: Draft, keys: Keys, others: Mapping[str, str] = OTHERS) -> None:
    for name, why in others.items():
        value = keys.get(name)
        if is_on(value) and number(value) != 0:
            draft.not_modelled(keys, name, why)
        else:
            keys.ignore(name)


def take_trainers_fsdp(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """`TrainingArguments._process_fsdp_args`. `fsdp` is true, or a text or list of words as older releases had it,
    whose details stand in `fsdp_config`: a mapping, a file, or text."""
    said, config = keys.get("fsdp"), keys.document.get("fsdp_config")
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    keys.ignore("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
    if not said or (len(words) == 1 and switch(words[0]) is False):
        keys.ignore("fsdp_config")
        return
    of = keys
    if config is not None and not isinstance(config, Mapping):
        keys.get("fsdp_config")
        inline, file = mapping_in(config), request.open(config)
        tree = inline if inline is not None else file.tree if file is not None else {}
        of = draft.keys(Document(file.file if file is not None else keys.document.file, {"fsdp_config": tree}, {}))
    take_fsdp(draft, of, version=2)
    if is_on(of.get("fsdp_config.cpu_offload")):
        draft.put("parallel.offload", "parameters", of, "fsdp_config.cpu_offload")
    for each in words:
        if isinstance(each, str) and each in SHARED:
            data, reshards = SHARED[each]
            draft.put("parallel.data", data, keys, "fsdp")
            draft.put("parallel.reshard_after_forward", reshards, keys, "fsdp")
        elif each == "offload":
            draft.put("parallel.offload", "parameters", keys, "fsdp")


def take_sft_config(draft: Draft, keys: Keys, defaults: Defaults = SFT_CONFIG) -> None:
    """What TRL's SFTConfig has beyond TrainingArguments."""
    take_cut(draft, keys)
    draft.take("data.packing", keys, "packing")
    draft.take("data.packing_strategy", keys, "packing_strategy", read=_packing_strategy)
    packs = is_on(draft.fields.get("data.packing"))
    if is_on(keys.get("padding_free")) and not packs:
        draft.not_modelled(keys, "padding_free", "the rows of a batch are one, without padding")
    evaluated = keys.get("eval_packing")
    if evaluated is not None and is_on(evaluated) != packs and draft.fields.get("run.eval_strategy", "no") != "no":
        draft.not_modelled(keys, "eval_packing", "rows of evaluations are packed otherwise")
    if (multiple := keys.get("pad_to_multiple_of")) not in (None, "auto"):
        draft.put("data.pad_to_multiple_of", multiple, keys, "pad_to_multiple_of")
    draft.take("offload_activations", keys, "activation_offloading")
    draft.take("data.completion_only", keys, "completion_only_loss")
    draft.take("data.num_proc", keys, "dataset_num_proc")
    if is_on(keys.get("dataset_kwargs.skip_prepare_dataset")):
        draft.put("data.prepared", True, keys, "dataset_kwargs.skip_prepare_dataset")
    if keys.get("loss_type") not in (None, "nll", "chunked_nll"):
        draft.not_modelled(keys, "loss_type", "another loss")
    keys.ignore("router_aux_loss_coef", "use_liger_loss")
    assume_all(draft, defaults, leave=("data.packing_strategy",))
    if packs:
        assume(draft, "data.packing_strategy", defaults)


def take_cut(draft: Draft, keys: Keys) -> None:
    """Where rows are cut."""
    if not draft.take("seq_len", keys, "max_length", "max_seq_length", "max_seq_len"):
        unlimited = next((name for name in ("max_length", "max_seq_length") if keys.has(name)), None)
        if unlimited:
            draft.not_modelled(keys, unlimited, "rows are as long as the data set has them")


def _packing_strategy(name: object) -> object:
    """`ffd` is what bfd was called when it came; bfd-requeue is bfd_split's first name."""
    return {"ffd": "bfd", "bfd-requeue": "bfd_split"}.get(name, name) if isinstance(name, str) else name


def take_model_config(draft: Draft, keys: Keys, defaults: Defaults = MODEL_CONFIG) -> None:
    """TRL's ModelConfig, whose names older releases and other trainers share."""
    draft.take("model", keys, "model_name_or_path")
    take_dtype(draft, keys, "dtype", "torch_dtype", "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype")
    take_attention(draft, keys, "attn_implementation", "model_init_kwargs.attn_implementation")
    if is_on(keys.get("use_flash_attention_2")):
        draft.put("attention", "flash_attention_2", keys, "use_flash_attention_2")
    adapted = is_on(keys.get("use_peft"))
    four, eight = is_on(keys.get("load_in_4bit")), is_on(keys.get("load_in_8bit"))
    if four or eight:
        draft.put("quantization.format", "int8" if eight else "nf4", keys, "load_in_8bit" if eight else "load_in_4bit")
    kind, double = keys.get("bnb_4bit_quant_type"), keys.get("use_bnb_nested_quant")
    if four and not eight:
        if kind is not None:
            draft.put("quantization.format", kind, keys, "bnb_4bit_quant_type")
        if double is not None:
            draft.put("quantization.double_quant", is_on(double), keys, "use_bnb_nested_quant")
        assume(draft, "quantization.double_quant", defaults)
    if adapted:
        draft.put("method", "qlora" if four or eight else "lora", keys, "use_peft")
        take_lora(draft, keys, defaults)
    else:
        keys.ignore(*LORA_KEYS)
    for field in ("method", "weights_dtype"):
        assume(draft, field, defaults)
    if is_on(keys.get("model_init_kwargs.use_kernels")):
        draft.not_modelled(keys, "model_init_kwargs.use_kernels", "kernels of the Hub take the place of layers")


LORA_KEYS = (
    *("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters", "lora_modules_to_save"),
    *("lora_task_type", "use_rslora", "use_dora"),
)


def take_lora(draft: Draft, keys: Keys, defaults: Defaults = MODEL_CONFIG) -> None:
    draft.take("lora.rank", keys, "lora_r")
    draft.take("lora.alpha", keys, "lora_alpha")
    draft.take("lora.dropout", keys, "lora_dropout")
    draft.take("lora.targets", keys, "lora_target_modules", read=targets)
    draft.take("lora.rslora", keys, "use_rslora")
    draft.take("lora.dora", keys, "use_dora")
    if keys.get("lora_modules_to_save"):
        draft.not_modelled(keys, "lora_modules_to_save", "whole modules are trained beside the adapters")
    if keys.get("lora_target_parameters"):
        draft.not_modelled(keys, "lora_target_parameters", "parameters of experts get adapters")
    for field in ("lora.rank", "lora.alpha", "lora.dropout"):
        assume(draft, field, defaults)


def targets(value: object) -> object:
    """`all-linear` in any spelling; a list of one is that name (`ModelConfig.__post_init__`). Commas between words of a
    command line are no part of them."""
    value = (
        [name.rstrip(",") if isinstance(name, str) else name for name in value] if isinstance(value, list) else value
    )
    names = value if isinstance(value, list) else [value]
    if len(names) == 1 and isinstance(names[0], str):
        return "all-linear" if names[0] in ("all-linear", "all_linear") else [names[0]]
    return value


def take_dtype(draft: Draft, keys: Keys, *names: str) -> None:
    """What weights load in. A null that is written down is handed to `from_pretrained`, which since transformers 5
    takes the checkpoint's own."""
    if not draft.take("weights_dtype", keys, *names, read=dtype_name):
        written = next((name for name in names if keys.has(name)), None)
        if written:
            draft.put("weights_dtype", "auto", keys, written)


def dtype_name(value: object) -> object:
    return value.removeprefix("torch.") if isinstance(value, str) else value


FLASH = re.compile(r"flash[-_]?attn(?:ention)?[-_]?([23])?", re.IGNORECASE)


def take_attention(draft: Draft, keys: Keys, *names: str) -> None:
    draft.take("attention", keys, *names, read=attention_name)


def attention_name(value: object) -> object:
    """`kernels-community/vllm-flash-attn3` is FlashAttention 3 as the Hub ships it, without a number 2."""
    if isinstance(value, str) and "/" in value and (found := FLASH.search(value)):
        return f"flash_attention_{found[1] or 2}"
    return value


def is_on(value: object) -> bool:
    """Whether a key is set to anything but off."""
    said = switch(value)
    return bool(value) and word(value) not in ("none", "null") if said is None else said


def mapping_in(value: object) -> Mapping[str, Any] | None:
    """A mapping, or the JSON text of one as command lines have it."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json_document(value, "value").tree
        except TunecastError:
            return None
    return None


def take_allocator(draft: Draft, keys: Keys, name: str) -> None:
    """Of a mapping of environment variables (torch/cuda/memory.py names both)."""
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        said = keys.get(f"{name}.{variable}")
        if isinstance(said, str) and "expandable_segments:true" in said.replace(" ", "").lower():
            draft.put("allocator", "expandable_segments", keys, f"{name}.{variable}")
