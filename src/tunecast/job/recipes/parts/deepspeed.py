"""DeepSpeed's JSON: ZeRO, its offload and its buckets. "auto" is left to the file that points to it.

A number that the outer file does not say is taken from here; where both say one, transformers refuses to start unless
they are equal (integrations/deepspeed.py, `HfTrainerDeepSpeedConfig.fill_match`), and the outer file's is kept.
Keys and defaults: deepspeed/runtime/config.py, `DeepSpeedConfig`; deepspeed/runtime/zero/config.py,
`DeepSpeedZeroConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.request import ReadRequest
from tunecast.job.recipes.values import number, switch, whole, word
from tunecast.job.releases import RELEASES
from tunecast.job.stacks import DEFAULT_STACK, STACKS

NAME = "deepspeed"
RELEASE = RELEASES["deepspeed"].newest
WITHOUT_EFFECT = (
    "_*", "scheduler.*", "optimizer.params.*", "optimizer.legacy_fusion", "steps_per_print", "wall_clock_breakdown",
    "memory_breakdown", "dump_state", "tensorboard.*", "wandb.*", "comet.*", "csv_monitor.*", "monitor_config.*",
    "comms_logger.*", "comms_config.*", "flops_profiler.*", "checkpoint.*", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "prescale_gradients", "gradient_predivide_factor", "dataloader_drop_last",
    "disable_allgather", "aio.*", "autotuning.*", "fp16.loss_scale", "fp16.initial_scale_power",
    "fp16.loss_scale_window", "fp16.hysteresis", "fp16.min_loss_scale", "fp16.auto_cast",
    "fp16.consecutive_hysteresis", "bf16.immediate_grad_update", "zero_optimization.allgather_bucket_size",
    "zero_optimization.allgather_partitions", "zero_optimization.ignore_unused_parameters",
    "zero_optimization.elastic_checkpoint", "zero_optimization.load_from_fp32_weights",
    "zero_optimization.*gather_*_weights_on_model_save", "zero_optimization.offload_*.pin_memory",
    "zero_optimization.offload_*.nvme_path", "zero_optimization.offload_*.buffer_*",
    "zero_optimization.offload_*.pipeline*", "zero_optimization.offload_*.fast_init",
    "zero_optimization.offload_*.max_in_cpu", "zero_optimization.memory_efficient_linear", "train_batch_size",
)  # fmt: skip
"""All-gathers of stages 1 and 2 write to the weights themselves (stage_1_and_2.py, `all_gather_dp_groups`): their
bucket is no memory of its own."""
OPTIMIZERS = {"adam": "adamw_torch_fused", "adamw": "adamw_torch_fused", "lion": "lion_32bit", "adagrad": "adagrad"}
"""Of `optimizer.type`; DeepSpeed's FusedAdam keeps what torch's fused AdamW keeps."""
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}

BUCKETS: Mapping[str, tuple[str, int]] = {
    "reduce_bucket_size": ("reduce_bucket_size", 500_000_000),
    "stage3_prefetch_bucket_size": ("prefetch_bucket_size", 50_000_000),
    "stage3_param_persistence_threshold": ("param_persistence_threshold", 100_000),
    "stage3_max_live_parameters": ("max_live_parameters", 1_000_000_000),
    "stage3_max_reuse_distance": ("max_reuse_distance", 1_000_000_000),
    "sub_group_size": ("sub_group_size", 1_000_000_000),
}
"""By key, in elements: its other name (which is the field's of `parallel`), and DeepSpeed's default."""
SWITCHES: Mapping[str, bool] = {"overlap_comm": False, "round_robin_gradients": False}
"""DeepSpeed's defaults of stages 1 and 2; in stage 3 the first is on, and the second not there."""
STAGE_3_ONLY = ("sub_group_size", "prefetch_", "param_persistence_", "max_live_", "max_reuse_")


def recognises(document: Document) -> bool:
    own = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
    precise = ("fp16.enabled", "bf16.enabled", "optimizer.type", "gradient_accumulation_steps", "zero_optimization")
    return any(map(document.has, own)) and any(map(document.has, precise)) and not document.has("model")


def read(draft: Draft, request: ReadRequest) -> None:
    read_deepspeed(draft, request.document, request)


def take_deepspeed(draft: Draft, keys: Keys, name: str, request: ReadRequest) -> bool:
    """The file or the mapping that a key holds; False where it holds neither."""
    value = keys.get(name)
    inline = keys.document.inside(name)
    if inline is not None and inline.tree:
        read_deepspeed(draft, inline, request)
        return True
    if not isinstance(value, str) or not value:
        return False
    found = request.open(value)
    if found is not None and recognises(found):
        read_deepspeed(draft, found, request)
    else:
        take_name(draft, keys, name, value)
    return True


def take_name(draft: Draft, keys: Keys, name: str, path: str) -> None:
    """What the name of a file says that is not there: ds_z3_offload_config.json."""
    said = PurePath(path).stem.lower()
    stage = re.search(r"z(?:ero)?[_-]?(?:stage)?[_-]?([0-3])(?![0-9])", said)
    if stage is None:
        draft.not_modelled(keys, name, "this DeepSpeed file is not here: how the model is shared is not known")
        return
    put_stage(draft, keys, int(stage.group(1)), name)
    if "offload" in said:
        both = stage.group(1) == "3"
        draft.offer("parallel.offload", "parameters" if both else "optimizer", keys, name)
    draft.not_modelled(keys, name, "this DeepSpeed file is not here: its ZeRO stage is taken from its name")


def read_deepspeed(draft: Draft, file: Document | Keys, request: ReadRequest) -> None:
    keys = file if isinstance(file, Keys) else draft.keys(file, WITHOUT_EFFECT)
    take_batch(draft, keys)
    take_precision(draft, keys)
    take_optimizer(draft, keys)
    take_zero(draft, keys)
    take_splits(draft, keys)
    for name, why in REPORTED.items():
        if _is_on(keys.document.get(name)):
            draft.not_modelled(keys, name, why)
        else:
            keys.ignore(name)


REPORTED: Mapping[str, str] = {
    "data_efficiency": "fewer tokens or samples are trained on than the data set has",
    "curriculum_learning": "rows grow while it trains",
    "progressive_layer_drop": "layers are left out in turns",
    "compression_training": "weights are compressed while it trains",
    "hybrid_engine": "the same weights generate text between steps",
    "torch_autocast": "weights stay in float32 under torch's autocast",
    "compile.deepcompile": "DeepSpeed's own compiler passes",
    "activation_checkpointing.cpu_checkpointing": "checkpointed activations wait in host memory",
    "activation_checkpointing.partition_activations": "checkpointed activations are cut over cards",
    "bf16.bf16_master_weights_and_grads": "master weights are in bfloat16",
    "bf16.bf16_optimizer_states": "the optimizer's states are in bfloat16",
    "fp16.fp16_master_weights_and_grads": "master weights are in float16",
    "zero_optimization.zero_quantized_weights": "weights are gathered in 8 bits",
    "zero_optimization.zero_quantized_nontrainable_weights": "frozen weights are kept in 8 bits",
    "zero_optimization.zero_quantized_gradients": "gradients are summed in 4 bits",
    "zero_optimization.zenflow": "some gradients step on the card, others on the host",
    "sparse_gradients": "gradients of embeddings are sparse",
    "elasticity": "the batch follows the number of cards",
}


def _is_on(value: Any) -> bool:
    if isinstance(value, Mapping):
        return switch(value.get("enabled", True)) is not False
    return bool(value) and switch(value) is not False


def take_batch(draft: Draft, keys: Keys) -> None:
    for field, name in (
        ("micro_batch", "train_micro_batch_size_per_gpu"),
        ("grad_accum", "gradient_accumulation_steps"),
    ):
        count = keys.get(name)
        if count is not None and word(count) != "auto":
            draft.offer(field, whole(count) or count, keys, name)
    clipping = keys.get("gradient_clipping")
    if number(clipping) is not None:
        draft.put("max_grad_norm", number(clipping), keys, "gradient_clipping")
    elif clipping is None:  # the Trainer leaves it to DeepSpeed, whose default is none
        draft.fields.pop("max_grad_norm", None)
        draft.assume("max_grad_norm", 0.0, f"DeepSpeed {RELEASE}")


def take_precision(draft: Draft, keys: Keys) -> None:
    """Where it says nothing or "auto", the outer file's counts (accelerate/utils/dataclasses.py,
    `DeepSpeedPlugin.set_mixed_precision`); alone, DeepSpeed trains in float32."""
    said = {name: keys.get(f"{name}.enabled") for name in ("bf16", "fp16")}
    for name, value in said.items():
        if switch(value):
            draft.put("autocast", DTYPES[name], keys, f"{name}.enabled")
            return
    if "auto" not in map(word, said.values()):
        draft.assume("autocast", None, f"DeepSpeed {RELEASE}")


def take_optimizer(draft: Draft, keys: Keys) -> None:
    """It takes the place of the Trainer's `optim`."""
    kind = keys.get("optimizer.type")
    if kind is None:
        return
    known = OPTIMIZERS.get(word(kind))
    if known is None:
        draft.not_modelled(keys, "optimizer.type", "an optimizer of DeepSpeed's own")
    else:
        draft.put("optimizer", known, keys, "optimizer.type")


def put_stage(draft: Draft, keys: Keys, stage: int, *names: str) -> None:
    draft.put("parallel.data", f"zero{stage}" if stage else "ddp", keys, *names)


def take_zero(draft: Draft, keys: Keys) -> None:
    within = "zero_optimization"
    stage = whole(keys.get(f"{within}.stage")) or 0
    if stage in (1, 2, 3):
        put_stage(draft, keys, stage, f"{within}.stage")
        take_buckets(draft, keys, stage)
    elif keys.get(f"{within}.stage") is not None and stage != 0:
        draft.put("parallel.data", f"zero{stage}", keys, f"{within}.stage")
    else:
        draft.offer("parallel.data", "ddp", keys, f"{within}.stage", within, "train_micro_batch_size_per_gpu")
        if draft.fields.get("autocast"):
            draft.not_modelled(keys, f"{within}.stage", "without ZeRO, DeepSpeed keeps master weights of its own")
    take_offload(draft, keys, stage)


def take_offload(draft: Draft, keys: Keys, stage: int) -> None:
    devices = {}
    for what, older in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")):
        name = f"zero_optimization.{what}.device"
        device = word(keys.get(name))
        if switch(keys.get(f"zero_optimization.{older}")):
            name, device = f"zero_optimization.{older}", "cpu"
        if device not in ("", "none"):
            devices[what] = (device, name)
    if "offload_param" in devices and stage == 3:
        device, name = devices["offload_param"]
        draft.put("parallel.offload", "parameters", keys, name)
        if "offload_optimizer" not in devices:
            draft.not_modelled(keys, name, "weights wait in host memory, and the optimizer's states do not")
    elif "offload_optimizer" in devices and stage:
        device, name = devices["offload_optimizer"]
        draft.put("parallel.offload", "optimizer", keys, name)
    else:
        return
    if device != "cpu":
        draft.put("parallel.offload_device", device, keys, name)
    ratio = number(keys.get("zero_optimization.offload_optimizer.ratio"))
    if ratio not in (None, 1.0):
        draft.not_modelled(keys, "zero_optimization.offload_optimizer.ratio", "part of the optimizer stays on the card")


def take_buckets(draft: Draft, keys: Keys, stage: int) -> None:
    """What a file leaves out is DeepSpeed's default, also where the stack's users start from another file."""
    stack = str(draft.fields.get("stack", DEFAULT_STACK))
    others = STACKS[stack].deepspeed.get(stage, {}) if stack in STACKS else {}
    for key, (field, default) in BUCKETS.items():
        names = tuple(f"zero_optimization.{each}" for each in dict.fromkeys((key, field)))
        value = keys.get(*names)
        if stage < 3 and field.startswith(STAGE_3_ONLY):
            keys.ignore(*names)
        elif value is not None:
            count = whole(value)
            draft.put(f"parallel.{field}", value if count is None else count, keys, *names)
        elif field in others or "auto" in others:
            draft.assume(f"parallel.{field}", default, f"DeepSpeed {RELEASE}")
    for field, default in SWITCHES.items():
        name = f"zero_optimization.{field}"
        value = keys.get(name)
        if stage == 3 and field == "round_robin_gradients":
            keys.ignore(name)
        elif value is not None:
            draft.put(f"parallel.{field}", value, keys, name)
        elif field in others:
            draft.assume(f"parallel.{field}", default or stage == 3, f"DeepSpeed {RELEASE}")
    for leaf, why in (
        ("contiguous_gradients", "gradients are not gathered in buckets"),
        ("reduce_scatter", "gradients are summed whole on every card"),
    ):
        if switch(keys.get(f"zero_optimization.{leaf}")) is False:
            draft.not_modelled(keys, f"zero_optimization.{leaf}", why)


def take_splits(draft: Draft, keys: Keys) -> None:
    tensor = whole(keys.get("tensor_parallel.autotp_size"))
    if tensor not in (None, 0, 1):
        draft.put("parallel.tensor", tensor, keys, "tensor_parallel.autotp_size")
    ulysses = whole(keys.get("sequence_parallel_size"))
    if ulysses not in (None, 0, 1):
        draft.put("parallel.context", ulysses, keys, "sequence_parallel_size")
        draft.put("parallel.context_kind", "ulysses", keys, "sequence_parallel_size")
    for name in ("communication_data_type", "data_types.grad_accum_dtype"):
        kind = DTYPES.get(word(keys.get(name)))
        if kind is not None and name == "communication_data_type":
            draft.put("parallel.reduce_dtype", kind, keys, name)
        elif keys.get(name) is not None:
            draft.not_modelled(keys, name, "gradients are added up in another dtype")
    keys.get("seq_parallel_communication_data_type")
    if keys.document.inside("compile") is not None:
        keys.get("compile.backend", "compile.kwargs", "compile.passes")
        if switch(keys.get("compile.disable")) is not True:
            draft.put("compile", True, keys, "compile.disable", "compile.backend")
