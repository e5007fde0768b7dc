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
from typing import Any

from tunecast.job.names import LANGUAGE
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks import axolotl_keys
from tunecast.job.recipes.frameworks.axolotl_cards import take_kernels, take_mesh, take_sharing
from tunecast.job.recipes.frameworks.axolotl_keys import (
    ATTENTION_FLAGS,
    LIKE_ADAMW,
    NAME,
    NEAREST_ATTENTION,
    OPTIMIZERS,
    OWN_KEYS,
    PLUGIN_TASKS,
    PLUGINS_READ,
    PLUGINS_REPORTED,
    RELEASE,
    REPORTED,
    WITHOUT_EFFECT,
    assume_default,
    attention_packs,
    is_on,
    plugins_of,
)  # fmt: skip
from tunecast.job.recipes.frameworks.axolotl_method import take_method, take_unfrozen
from tunecast.job.recipes.frameworks.axolotl_run import take_run
from tunecast.job.recipes.frameworks.axolotl_tasks import DEFAULTS as TASK_DEFAULTS
from tunecast.job.recipes.frameworks.axolotl_tasks import WORDS as TASK_WORDS
from tunecast.job.recipes.frameworks.axolotl_tasks import take_task, take_task_keys
from tunecast.job.recipes.request import Invocation, ReadRequest
from tunecast.job.recipes.values import switch, whole, word
from tunecast.job.recipes.words import Word, flags_of

__all__ = ["DATA", "DEFAULTS", "NAME", "RELEASE", "WITHOUT_EFFECT", "WORDS", "invocation", "read", "recognises"]

DEFAULTS = {**axolotl_keys.DEFAULTS, **TASK_DEFAULTS}
CLOUD_KEYS = ("provider", "secrets", "volumes", "dockerfile_commands")
"""axolotl/cli/cloud/modal_.py, axolotl/cli/cloud/baseten/__init__.py."""
DATA = ("datasets.*.path", "datasets.*.data_files", "pretraining_dataset.*.path")
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
    **TASK_WORDS,
}
"""Keys that say a field, where a file is to be changed."""


def recognises(document: Document) -> bool:
    return document.has("base_model") and any(map(document.has, OWN_KEYS))


def use_without_training(document: Document) -> str | None:
    if document.has("gpu_count") and not document.has("base_model") and any(map(document.has, CLOUD_KEYS)):
        return "`axolotl train --cloud` says with it which cards are rented for another file"
    return None


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


def read(draft: Draft, request: ReadRequest) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    draft.put("stack", "axolotl", keys, "base_model")
    take_model(draft, keys, request)
    take_task(draft, keys)
    take_plugins(draft, keys)
    take_method(draft, keys)
    take_unfrozen(draft, keys)
    take_precision(draft, keys)
    take_attention(draft, keys)
    take_checkpointing(draft, keys)
    take_optimizer(draft, keys)
    take_rows(draft, keys)
    take_run(draft, keys)
    take_sharing(draft, keys, request)
    take_mesh(draft, keys)
    take_kernels(draft, keys)
    take_task_keys(draft, keys)
    if is_on(keys.document.get("gemma4_hybrid_attn_impl")):  # heads of 512, which flash-attn has no kernel for
        draft.put("attention", "sdpa", keys, "gemma4_hybrid_attn_impl")
    draft.assume("allocator", "expandable_segments")
    for name, why in REPORTED.items():
        if is_on(keys.document.get(name)):
            draft.not_modelled(keys, name, why)
        else:
            keys.ignore(name)


def take_model(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    model = keys.get("base_model")
    if isinstance(model, str) and model.startswith(("./", "../")):
        model = str(request.folder / model)
    draft.put("model", model, keys, "base_model")
    quantised = keys.get("model_quantization_config")
    if quantised is not None and not is_on(keys.get("model_quantization_config_kwargs.dequantize")):
        draft.not_modelled(keys, "model_quantization_config", "the format that the checkpoint's weights are loaded in")
    keys.ignore("model_quantization_config_kwargs")


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
    packs = is_on(keys.get("sample_packing")) and draft.fields.get("task", "sft") in LANGUAGE
    real = switch(keys.get("multipack_real_batches"))
    if keys.get("sample_packing") is not None:
        draft.put("data.packing", packs, keys, "sample_packing")
    draft.assume("data.packing", False)
    multiple = whole(keys.get("pad_to_multiple_of")) or 64
    fills = switch(keys.get("pad_to_sequence_len"))
    if packs and fills is None:  # `hint_sample_packing_padding`
        fills = True
    if packs:
        draft.assume("data.packing_strategy", "bfd")
        if (real is False or (real is None and attention_packs(draft))) and length and rows and rows > 1:
            draft.put("seq_len", length * rows, keys, "sequence_len", "micro_batch_size")
            draft.put("micro_batch", 1, keys, "sample_packing")
    if fills and length and length <= 65536:
        draft.put(
            "data.pad_to_multiple_of", multiple * -(-length // multiple), keys, "pad_to_sequence_len", "sample_packing"
        )
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
