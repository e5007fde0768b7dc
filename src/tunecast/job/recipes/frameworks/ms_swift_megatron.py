"""`megatron sft` of ms-swift: Megatron Core's arguments, some under names of its own.

Defaults: swift/megatron/arguments/megatron_args.py, `MegatronArguments`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.names import HEADS
from tunecast.job.recipes import huggingface
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.ms_swift_tasks import take_task_keys
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.images import image_tokens
from tunecast.job.recipes.parts.megatron import WITHOUT_EFFECT, take_megatron
from tunecast.job.recipes.values import number, whole, word

_MEGATRON = "swift/megatron/arguments/megatron_args.py: MegatronArguments"
_TUNER = "swift/megatron/arguments/megatron_args.py: MegatronTunerMixin"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "method": ("full", f"{_TUNER}.tuner_type"),
    "lora.rank": (8, f"{_TUNER}.lora_rank"),
    "lora.alpha": (32.0, f"{_TUNER}.lora_alpha"),
    "lora.dropout": (0.05, f"{_TUNER}.lora_dropout"),
    "parallel.expert_tensor": (1, f"{_MEGATRON}.expert_tensor_parallel_size"),
    "loss": ("fused", f"{_MEGATRON}.cross_entropy_loss_fusion"),
    "micro_batch": (1, f"{_MEGATRON}.micro_batch_size"),
    "global_batch": (16, f"{_MEGATRON}.global_batch_size"),
    "max_grad_norm": (1.0, f"{_MEGATRON}.clip_grad"),
    "data.seed": (42, f"{_MEGATRON}.seed"),
    "data.workers": (4, f"{_MEGATRON}.dataloader_num_workers"),
    "data.group_by_length": (False, f"{_MEGATRON}.group_by_length"),
    "run.save_steps": (500, f"{_MEGATRON}.save_steps"),
    "run.save_only_model": (False, f"{_MEGATRON}.no_save_optim"),
}
ATTENTION = {"flash": "flash_attention_2", "fused": "flash_attention_2", "auto": "flash_attention_2", "local": "eager"}
"""TransformerEngine's kernels keep what FlashAttention keeps."""
TARGETS: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
OWN_WITHOUT_EFFECT = (
    *WITHOUT_EFFECT,
    *("finetune", "save_safetensors", "masked_softmax_fusion", "bridge_backend", "mcore_model", "mcore_adapter"),
    *(
        "manual_gc*",
        "perform_initialization",
        "use_cpu_initialization",
        "dist_ckpt_*",
        "te_rng_tracker",
        "data_sharding",
    ),
    *("linear_decoupled_in_proj", "calculate_per_token_loss", "megatron_extra_kwargs", "optimizer_offload_fraction"),
    *("mtp_loss_scaling_factor", "exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype", "main_params_dtype"),
    *("overlap_p2p_comm", "batch_p2p_comm", "align_param_gather", "adam_*", "muon_*", "weight_decay*", "no_save_rng"),
    *(
        "decoder_*_loss",
        "nccl_*",
        "use_persistent_ckpt_worker",
        "enable_channel_loss",
        "tensorboard_*",
        "data_sharding",
    ),
)
REPORTED: Mapping[str, str] = {
    "adapters": "adapters that exist are trained further: their rank is that of their file",
    "modules_to_save": "whole modules are trained beside the adapters",
    "target_regex": "which modules get adapters follows from a pattern",
    "freeze_parameters": "some weights are not trained",
    "freeze_parameters_regex": "some weights are not trained",
    "freeze_parameters_ratio": "some weights are not trained",
    "trainable_parameters": "further weights are trained",
    "trainable_parameters_regex": "further weights are trained",
    "enable_dft_loss": "a loss of its own",
    "fp4_format": "products in FP4",
    "moe_layer_recompute": "experts are computed again",
    "sequence_packing_scheduler": "rows are dealt to cards by their length",
    "dsa_indexer_loss_coeff": "a further loss",
}


def read_megatron(draft: Draft, keys: Keys) -> None:
    keys.without(*OWN_WITHOUT_EFFECT)
    draft.assume("stack", "megatron", f"{draft.framework} {draft.release}, whose megatron command is Megatron Core's")
    draft.take("micro_batch", keys, "micro_batch_size")
    draft.put_global_batch(keys, "global_batch_size", default=16)
    take_tuner(draft, keys)
    take_numbers(draft, keys)
    take_megatron(draft, keys)
    draft.assume("gradient_checkpointing", False, f"{draft.framework} {draft.release}: attention alone is recomputed")
    take_rows(draft, keys)
    take_run(draft, keys)
    take_task_keys(draft, keys)
    if draft.fields.get("task") in HEADS:  # `cross_entropy_loss_fusion` is of a vocabulary
        draft.drop("loss")
    for name, why in REPORTED.items():
        if is_on(keys.get(name)) and number(keys.get(name)) != 0:
            draft.not_modelled(keys, name, why)
    lora = ("lora.rank", "lora.alpha", "lora.dropout")
    split = () if draft.fields.get("parallel.tensor", 1) != 1 else ("parallel.expert_tensor",)
    headless = ("loss",) if draft.fields.get("task") in HEADS else ()
    huggingface.assume_all(draft, DEFAULTS, leave=("global_batch", *lora, *split, *headless))


def take_tuner(draft: Draft, keys: Keys) -> None:
    kind = word(keys.get("tuner_type", "train_type"))
    if kind in ("", "full"):
        if kind:
            draft.put("method", "full", keys, "tuner_type", "train_type")
        keys.ignore("lora_rank", "lora_alpha", "lora_dropout", "lora_dtype", "target_modules", "use_rslora")
        return
    if kind != "lora":
        draft.refuse(kind, "adapters of this kind are not modelled")
    draft.put("method", "lora", keys, "tuner_type", "train_type")
    draft.take("lora.rank", keys, "lora_rank")
    draft.take("lora.alpha", keys, "lora_alpha")
    draft.take("lora.dropout", keys, "lora_dropout")
    draft.take("lora.rslora", keys, "use_rslora")
    draft.take("lora.adapter_dtype", keys, "lora_dtype")
    draft.take("lora.targets", keys, "target_modules", read=targets)
    draft.assume("lora.targets", "all-linear")
    for field in ("lora.rank", "lora.alpha", "lora.dropout"):
        huggingface.assume(draft, field, DEFAULTS)


def targets(value: object) -> object:
    """Megatron's layers, each of which is several of transformers'."""
    names = [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)]
    if any(name in TARGETS for name in names):
        return [each for name in names for each in TARGETS.get(name, (name,))]
    return huggingface.targets(value)


def take_numbers(draft: Draft, keys: Keys) -> None:
    """Weights of 16 bits, master weights in the optimizer."""
    chosen = keys.get("torch_dtype")
    kind = "float16" if is_on(keys.get("fp16")) or word(chosen) == "float16" else "bfloat16"
    if chosen is not None:
        draft.put("weights_dtype", huggingface.dtype_name(chosen), keys, "torch_dtype")
    draft.assume("weights_dtype", kind)
    draft.assume("autocast", kind)
    keys.get("bf16")
    optimizer = word(keys.get("optimizer"))
    if optimizer in ("", "adam"):
        draft.assume("optimizer", "adamw_torch_fused")
    else:
        draft.put("optimizer", "muon" if "muon" in optimizer else optimizer, keys, "optimizer")
    draft.take("max_grad_norm", keys, "clip_grad")
    backend = word(keys.get("attention_backend"))
    if backend == "unfused":
        draft.put("attention", "eager", keys, "attention_backend")
    elif backend:
        draft.put("attention", ATTENTION.get(backend, keys.get("attention_backend")), keys, "attention_backend")
    draft.assume("attention", "flash_attention_2")
    if keys.get("cross_entropy_loss_fusion") is not None:
        fused = is_on(keys.get("cross_entropy_loss_fusion"))
        draft.put("loss", "fused" if fused else "full", keys, "cross_entropy_loss_fusion")


def take_rows(draft: Draft, keys: Keys) -> None:
    packs = is_on(keys.get("packing"))
    draft.take("data.packing", keys, "packing")
    draft.assume("data.packing", False)
    if packs:
        draft.assume("data.packing_strategy", "bfd")
    draft.take("seq_len", keys, *(("packing_length", "max_length") if packs else ("max_length", "packing_length")))
    draft.assume(
        "seq_len", 1024 + image_tokens(draft), "tunecast: nothing is cut, so that rows are as long as the data's"
    )
    keys.ignore("padding_free", "mlp_padding_free")
    draft.take("data.num_proc", keys, "dataset_num_proc")
    draft.take("data.seed", keys, "data_seed", "seed")
    draft.take("data.workers", keys, "dataloader_num_workers")
    draft.take("data.group_by_length", keys, "group_by_length")


def take_run(draft: Draft, keys: Keys) -> None:
    steps = keys.get("train_iters", "max_steps")
    if steps is not None:
        draft.put("run.max_steps", steps, keys, "train_iters", "max_steps")
    epochs = keys.get("num_train_epochs", "max_epochs")
    if epochs is not None:
        draft.put("data.epochs", epochs, keys, "num_train_epochs", "max_epochs")
    strategy = keys.get("save_strategy")
    if strategy is not None:
        draft.put("run.save_strategy", strategy, keys, "save_strategy")
    draft.assume("run.save_strategy", "steps")
    draft.take("run.save_steps", keys, "save_steps", "save_interval")
    draft.take("run.save_only_model", keys, "no_save_optim")
    draft.take("run.save_total_limit", keys, "save_total_limit")
    evaluates = (number(keys.get("split_dataset_ratio")) or 0) > 0 or keys.has("val_dataset")
    if evaluates and whole(keys.get("eval_iters")) != 0:
        draft.assume("run.eval_strategy", "steps")
        draft.take("run.eval_steps", keys, "eval_steps", "eval_interval", "save_steps")
    else:
        draft.assume("run.eval_strategy", "no")
        keys.ignore("eval_steps", "eval_interval", "eval_iters", "eval_strategy")
    keys.get("eval_strategy")
