"""PEFT's adapter_config.json, beside another file or alone: what kind of adapters, and on which layers.

Source   peft 0.21.2: tuners/lora/config.py, `LoraConfig`; utils/peft_types.py, `PeftType`.

Alone it says nothing of batches and rows; the model may be missing too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.request import ReadRequest

NAME = "peft"
RELEASE = "0.21.2"
_LORA = "peft/tuners/lora/config.py: LoraConfig"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "lora.rank": (8, f"{_LORA}.r"),
    "lora.alpha": (8, f"{_LORA}.lora_alpha"),
    "lora.dropout": (0.0, f"{_LORA}.lora_dropout"),
    "lora.dora": (False, f"{_LORA}.use_dora"),
    "lora.rslora": (False, f"{_LORA}.use_rslora"),
}
OTHER_TASKS = {"SEQ_CLS": "classification", "TOKEN_CLS": "classification", "FEATURE_EXTRACTION": "embedding",
               "SEQ_2_SEQ_LM": "sequence to sequence", "QUESTION_ANS": "question answering"}  # fmt: skip
NOT_MODELLED: Mapping[str, str] = {
    "rank_pattern": "adapters of some layers have another rank",
    "layers_to_transform": "some layers get no adapter",
    "exclude_modules": "some modules get no adapter",
    "target_parameters": "parameters of experts get adapters too",
    "trainable_token_indices": "some tokens' embeddings are trained too",
    "layer_replication": "layers are used more than once",
    "megatron_config": "Megatron's layers get the adapters",
    "arrow_config": "several adapters are mixed",
    "alora_invocation_tokens": "adapters work behind some tokens only",
    "use_qalora": "rows of the first matrix are shared",
    "kasa_config": "weights are decomposed as well",
    "use_bdlora": "matrices are cut into blocks",
    "lora_bias": "adapters have a bias",
}
"""Keys of `LoraConfig` that move what is trained."""
WITHOUT_EFFECT = (
    *(
        "alpha_pattern*",
        "auto_mapping*",
        "inference_mode",
        "init_lora_weights",
        "revision",
        "fan_in_fan_out",
        "peft_version",
    ),
    *("loftq_config*", "eva_config*", "corda_config*", "lora_ga_config*", "layers_pattern*", "megatron_core"),
    *("qalora_group_size", "ensure_weight_tying", "runtime_config*", "task_type", "bias"),
)


def recognises(document: Document) -> bool:
    """Of a file alone. A trainer's own `peft_type` stands among keys that PEFT has not."""
    return isinstance(document.get("peft_type"), str) and not any(map(document.has, ("model", "output_dir", "train")))


def read(draft: Draft, request: ReadRequest) -> None:
    document = request.document
    keys = read_adapter(draft, document)
    if keys.get("base_model_name_or_path") is not None:
        draft.put("model", keys.get("base_model_name_or_path"), keys, "base_model_name_or_path")
    task = OTHER_TASKS.get(str(keys.get("task_type")).rpartition(".")[2])
    if task is not None:
        draft.refuse(task, "the adapter's task_type says so")


def read_adapter(draft: Draft, document: Document) -> Keys:
    """What an adapter's file says of `method` and `lora`; the keys, of which the base model's name is left."""
    keys = draft.keys(document, WITHOUT_EFFECT)
    keys.get("base_model_name_or_path")
    kind = str(keys.get("peft_type")).rpartition(".")[2].upper()
    if kind != "LORA":
        draft.refuse(f"adapters of type {kind[:40]}", "LoRA's are modelled")
        keys.ignore(*document.tree)
        return keys
    draft.put("method", "lora", keys, "peft_type")
    take_lora(draft, keys)
    for name, why in NOT_MODELLED.items():
        if keys.get(name) not in (None, False, [], {}, ""):
            draft.not_modelled(keys, name, why)
    if keys.get("bias") not in (None, "none"):
        draft.not_modelled(keys, "bias", "biases of the model are trained too")
    return keys


def take_lora(draft: Draft, keys: Keys) -> None:
    fields = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "dora": "use_dora", "rslora": "use_rslora"}
    for field, key in fields.items():
        draft.take(f"lora.{field}", keys, key)
        draft.assume(f"lora.{field}", DEFAULTS[f"lora.{field}"][0])
    draft.take("lora.targets", keys, "target_modules", read=targets)
    if isinstance(keys.get("target_modules"), str) and draft.fields["lora.targets"] is None:
        draft.drop("lora.targets")
        draft.not_modelled(keys, "target_modules", "of this pattern what PEFT chooses by itself is taken")
    saved = keys.get("modules_to_save")
    if saved:
        draft.not_modelled(keys, "modules_to_save", "these modules are trained whole")


def targets(value: Any) -> Any:
    """`all-linear`, names as a list, or None for a pattern: PEFT looks for what it matches."""
    if not isinstance(value, str) or value == "all-linear":
        return value
    return [value] if value.isidentifier() else None
