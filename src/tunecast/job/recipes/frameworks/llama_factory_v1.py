"""LLaMA-Factory's v1 schema (USE_V1=1): a training loop of its own, whose parts are plugins chosen by `name`.

Keys      llamafactory/v1/config/training_args.py, `TrainingArguments`; llamafactory/v1/config/model_args.py,
          `ModelArguments`; of plugins llamafactory/v1/plugins/model_plugins/peft.py, `LoraParams`;
          llamafactory/v1/plugins/model_plugins/quantization.py, `BnbParams`;
          llamafactory/v1/plugins/trainer_plugins/distributed/fsdp2.py, `FSDP2Engine`
Loop      llamafactory/v1/core/base_trainer.py, `BaseTrainer`: no autocast, mixed precision is FSDP's; torch's AdamW
Casts     llamafactory/v1/core/model_engine.py, `ModelEngine._init_model`: trained whole, weights become float32
Batches   llamafactory/v1/plugins/trainer_plugins/batching.py
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.recipes import huggingface
from tunecast.job.recipes.cards import is_count
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.llama_factory_frozen import take_frozen
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.images import assume_images
from tunecast.job.recipes.parts.deepspeed import take_deepspeed
from tunecast.job.recipes.request import ReadRequest
from tunecast.job.recipes.values import number, whole, word

_TRAINING = "llamafactory/v1/config/training_args.py: TrainingArguments"
_LORA = "llamafactory/v1/plugins/model_plugins/peft.py: LoraParams"
_BNB = "llamafactory/v1/plugins/model_plugins/quantization.py: BnbParams"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "micro_batch": (1, f"{_TRAINING}.micro_batch_size"),
    "seq_len": (2048, f"{_TRAINING}.cutoff_len"),
    "data.epochs": (3, f"{_TRAINING}.num_train_epochs"),
    "data.seed": (42, f"{_TRAINING}.seed"),
    "data.workers": (16, f"{_TRAINING}.batching_workers"),
    "max_grad_norm": (1.0, f"{_TRAINING}.max_grad_norm"),
    "gradient_checkpointing": (True, f"{_TRAINING}.enable_activation_checkpointing"),
    "lora.rank": (8, f"{_LORA}.r"),
    "lora.alpha": (16, f"{_LORA}.lora_alpha"),
    "lora.dropout": (0.05, f"{_LORA}.lora_dropout"),
    "lora.rslora": (False, f"{_LORA}.use_rslora"),
    "lora.dora": (False, f"{_LORA}.use_dora"),
    "quantization.format": ("nf4", f"{_BNB}.quantization_type"),
    "quantization.double_quant": (True, f"{_BNB}.double_quantization"),
}
WITHOUT_EFFECT = (
    *("output_dir", "learning_rate", "train_dataset", "eval_dataset", "custom_chat_template", "trust_remote_code"),
    *("lr_scheduler_config*", "dist_timeout", "full_determinism", "logging_steps", "resume_from_checkpoint"),
    *("sample_backend", "max_new_tokens", "temperature", "top_p", "top_k", "dist_config.dcp_path", "cp_mode"),
    *("dist_config.pin_memory", "optim_config.*", "quant_config.compute_dtype", "dp_size", "mp_shard_size"),
    *("pref_*", "simpo_gamma", "dpo_label_smoothing", "ld_alpha"),
)
PLUGINS = ("dist_config", "kernel_config", "peft_config", "quant_config", "init_config", "optim_config")
LIGER = ["liger_rope", "liger_rms_norm", "liger_glu", "liger_cross_entropy"]
"""llamafactory/v1/plugins/model_plugins/kernels/liger_kernel_ops.py, `LigerKernel`: in training logits are made."""


def recognises(document: Document) -> bool:
    named = isinstance(document.get("model"), str)
    chosen = any(isinstance(document.get(f"{plugin}.name"), str) for plugin in PLUGINS)
    trains = document.has("train_dataset") and any(map(document.has, ("cutoff_len", "micro_batch_size")))
    exports = document.get("peft_config.export_dir") is not None
    return named and not exports and (chosen or (trains and document.has("model_class")))


def read(draft: Draft, request: ReadRequest) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    draft.take("model", keys, "model")
    draft.assume("stack", "transformers", f"{draft.framework} {draft.release}: a loop of its own around such models")
    take_task(draft, keys, request)
    take_method(draft, keys)
    take_rows(draft, keys)
    take_distribution(draft, keys, request)
    take_kernels(draft, keys)
    take_optimizer(draft, keys)
    take_run(draft, keys)
    take_loading(draft, keys)


def take_task(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """The command says it: `llamafactory-cli sft x.yaml`. Of a file alone, its data set may."""
    data = keys.document.get("train_dataset")
    listed = request.open(data)
    converters = [word(listed.get(f"{name}.converter")) for name in listed.tree] if listed is not None else []
    if request.command in ("dpo", "rm") or "pair" in converters:
        draft.put("task", "reward" if request.command == "rm" else "dpo", keys, "train_dataset")
        if draft.fields["task"] == "dpo":
            draft.take("preference.beta", keys, "pref_beta")
    elif word(keys.get("model_class")) == "cls":
        draft.put("task", "classify", keys, "model_class")
    elif word(keys.get("model_class")) == "other":
        draft.refuse("another model class", "models that continue text, or classify it, are modelled")
    else:
        draft.assume("task", "sft")
    if "multimodal" in str(data).lower():
        assume_images(draft)


def take_method(draft: Draft, keys: Keys) -> None:
    kind, quantized = word(keys.get("peft_config.name")), word(keys.get("quant_config.name"))
    draft.take("attention", keys, "flash_attn")
    draft.assume("attention", "sdpa")
    if kind == "freeze":
        take_frozen(draft, keys, "peft_config.")
        draft.assume("weights_dtype", "auto")
        if is_on(keys.get("peft_config.cast_trainable_params_to_fp32", default=True)):
            draft.not_modelled(keys, "peft_config.name", "what is trained is in float32: taken in the weights' dtype")
    elif kind == "":
        draft.assume("method", "full")
        draft.assume("weights_dtype", "float32")
    else:
        draft.put("method", "qlora" if kind == "lora" and quantized else kind, keys, "peft_config.name")
        draft.assume("weights_dtype", "auto")
        take_lora(draft, keys)
    if quantized:
        take_quantization(draft, keys)


def take_lora(draft: Draft, keys: Keys) -> None:
    """`all` is every linear layer but the head (`_find_all_linear_modules`)."""
    leaves = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "rslora": "use_rslora", "dora": "use_dora"}
    for field, leaf in leaves.items():
        draft.take(f"lora.{field}", keys, f"peft_config.{leaf}")
        huggingface.assume(draft, f"lora.{field}", DEFAULTS)
    draft.take("lora.targets", keys, "peft_config.target_modules", read=targets)
    draft.assume("lora.targets", "all-linear")
    for leaf, why in (
        ("modules_to_save", "whole modules are trained beside the adapters"),
        ("adapter_name_or_path", "an adapter that exists is trained further: its rank is that of its file"),
    ):
        if keys.get(f"peft_config.{leaf}"):
            draft.not_modelled(keys, f"peft_config.{leaf}", why)


def targets(value: object) -> object:
    if isinstance(value, str):
        return "all-linear" if value == "all" else [value]
    return value


def take_quantization(draft: Draft, keys: Keys) -> None:
    bits = keys.get("quant_config.quantization_bit")
    if bits is not None and whole(bits) == 8:
        draft.put("quantization.format", "int8", keys, "quant_config.quantization_bit")
        keys.ignore("quant_config.quantization_type", "quant_config.double_quantization")
    else:
        draft.take("quantization.format", keys, "quant_config.quantization_type")
        huggingface.assume(draft, "quantization.format", DEFAULTS)
        draft.take("quantization.double_quant", keys, "quant_config.double_quantization")
        huggingface.assume(draft, "quantization.double_quant", DEFAULTS)
    draft.assume("quantization.prepare_kbit", False)


def take_rows(draft: Draft, keys: Keys) -> None:
    for field, name in (("micro_batch", "micro_batch_size"), ("seq_len", "cutoff_len")):
        draft.take(field, keys, name)
        huggingface.assume(draft, field, DEFAULTS)
    if keys.get("global_batch_size") is not None:
        draft.put_global_batch(keys, "global_batch_size")
    else:
        draft.assume("grad_accum", 1)
    rows, length = draft.fields["micro_batch"], draft.fields["seq_len"]
    strategy = word(keys.get("batching_strategy"))
    if strategy == "dynamic_batching" and is_count(rows) and is_count(length):
        draft.put("data.max_tokens_per_batch", rows * length, keys, "batching_strategy")
    elif strategy == "dynamic_padding_free" and is_count(rows) and is_count(length):
        draft.put("data.packing", True, keys, "batching_strategy")
        draft.put("seq_len", rows * length, keys, "cutoff_len")
        draft.put("micro_batch", 1, keys, "micro_batch_size")
        draft.not_modelled(keys, "batching_strategy", "samples are packed as they come, each cut at cutoff_len")
    elif strategy == "padding_free":
        draft.not_modelled(keys, "batching_strategy", "the rows of a batch are one, without padding")


def take_distribution(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """`BaseTrainer._shard_model`. Without a plugin, and with DeepSpeed, `bf16` is asked by nobody."""
    kind, half = word(keys.get("dist_config.name")), is_on(keys.get("bf16", default=True))
    if kind in ("fsdp2", "fsdpturbo"):
        copies = keys.get("mp_replicate_size")
        draft.put("parallel.data", "hsdp" if is_count(copies) and copies > 1 else "fsdp", keys, "dist_config.name")
        draft.put("parallel.fsdp_version", 2, keys, "dist_config.name")
        draft.assume("parallel.reduce_dtype", "float32")
        draft.take("parallel.reshard_after_forward", keys, "dist_config.reshard_after_forward")
        if draft.fields["parallel.data"] == "hsdp":
            draft.put("parallel.replicate", copies, keys, "mp_replicate_size")
        if is_on(keys.get("dist_config.offload_params")):
            draft.put("parallel.offload", "parameters", keys, "dist_config.offload_params")
        draft.fields["autocast"] = "bfloat16" if half else None
        draft.places["autocast"] = keys.place("bf16" if keys.has("bf16") else "dist_config.name")
        experts = keys.get("dist_config.ep_size")
        if kind == "fsdpturbo":
            draft.not_modelled(keys, "dist_config.name", "FSDPTurbo is taken as FSDP 2")
        if experts is not None and whole(experts) != 1:
            draft.not_modelled(keys, "dist_config.ep_size", "experts are spread over cards: taken as cut like all else")
        keys.ignore("dist_config.ep_dispatcher")
    elif kind == "deepspeed":
        draft.assume("autocast", "bfloat16", f"{draft.framework} {draft.release}, unless DeepSpeed's file says another")
        take_deepspeed(draft, keys, "dist_config.config_file", request)
    else:
        draft.assume("autocast", None)
    size = keys.get("cp_size")
    if size is not None and whole(size) != 1:
        draft.put("parallel.context", size, keys, "cp_size")
        draft.put("parallel.context_kind", "ulysses", keys, "cp_size")


def take_kernels(draft: Draft, keys: Keys) -> None:
    """Comma by comma. `auto` is of Ascend's alone (llamafactory/v1/plugins/model_plugins/kernels/interface.py,
    `_AUTO_KERNELS`)."""
    chosen: list[str] = []
    for name in map(str.strip, f"{keys.get('kernel_config.name', default='auto')}".split(",")):
        if name == "liger_kernel":
            chosen += LIGER
        elif name == "flash-linear-attention":
            chosen.append("fla")
        elif name not in ("", "auto"):
            draft.not_modelled(keys, "kernel_config.name", "kernels of LLaMA-Factory's own")
    keys.ignore("kernel_config.include_kernels", "kernel_config.chunk_size")
    if chosen:
        draft.put("kernels", chosen, keys, "kernel_config.name")


def take_optimizer(draft: Draft, keys: Keys) -> None:
    """torch's AdamW in its own choice of loop; Muon is the one plugin (`create_muon_optimizer`)."""
    named = word(keys.get("optim_config.name"))
    draft.assume("optimizer", "adamw_torch")
    if named == "muon" and not str(draft.fields.get("parallel.data", "ddp")).startswith(("fsdp", "hsdp")):
        draft.put("optimizer", "muon", keys, "optim_config.name")
    elif named:
        why = "taken is AdamW: of matrices Muon keeps one moment, and gathers whole gradients for its step"
        draft.not_modelled(keys, "optim_config.name", why if named == "muon" else "taken is AdamW")
    draft.take("max_grad_norm", keys, "max_grad_norm")
    huggingface.assume(draft, "max_grad_norm", DEFAULTS)


def take_run(draft: Draft, keys: Keys) -> None:
    for field, name in (("data.epochs", "num_train_epochs"), ("data.seed", "seed"), ("run.max_steps", "max_steps")):
        draft.take(field, keys, name)
        huggingface.assume(draft, field, DEFAULTS)
    draft.take("data.workers", keys, "batching_workers")
    huggingface.assume(draft, "data.workers", DEFAULTS)
    draft.take("gradient_checkpointing", keys, "enable_activation_checkpointing")
    huggingface.assume(draft, "gradient_checkpointing", DEFAULTS)
    if draft.fields["gradient_checkpointing"]:
        draft.assume("checkpoint_reentrant", False)
    draft.assume("run.eval_strategy", "no")
    steps, epochs = keys.get("save_steps"), keys.get("save_epochs")
    draft.assume("run.save_strategy", "steps" if steps or epochs else "no")
    draft.take("run.save_steps", keys, "save_steps")
    if steps is None and epochs is not None and (share := number(epochs)):
        draft.put("run.saves_per_epoch", 1 / share, keys, "save_epochs")
    draft.take("run.save_total_limit", keys, "save_total_limit")
    keys.ignore("save_ckpt_as_hf")


def take_loading(draft: Draft, keys: Keys) -> None:
    """What its loop does otherwise than the one it is taken for (llamafactory/v1/trainers/sft_trainer.py,
    `SFTTrainer.compute_loss`; `BaseTrainer.compute_log_probs`)."""
    elsewhere = word(keys.get("init_config.name")) in ("init_on_meta", "init_on_rank0")
    sharded = str(draft.fields.get("parallel.data", "")).startswith(("fsdp", "hsdp"))
    loads = "loads the whole model onto each card before it is cut, and " if sharded and not elsewhere else ""
    name = next((name for name in ("init_config.name", "dist_config.name") if keys.has(name)), "model")
    draft.not_modelled(keys, name, f"v1's own loop {loads}copies its logits in float32 once more for the loss")
