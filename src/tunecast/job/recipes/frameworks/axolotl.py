"""Axolotl's YAML. Keys and defaults: axolotl/utils/schemas/config.py, `AxolotlInputConfig`."""

from __future__ import annotations

from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.request import Request

NAME = "axolotl"
RELEASE = "0.19.0"
OWN_KEYS = (
    "sequence_len",
    "datasets",
    "micro_batch_size",
    "adapter",
    "val_set_size",
    "sample_packing",
    "pretraining_dataset",
)
WITHOUT_EFFECT = ("wandb_*", "mlflow_*", "comet_*", "*_project", "hub_*", "dataset_prepared_path", "special_tokens.*")


def recognises(document: Document) -> bool:
    return document.has("base_model") and any(map(document.has, OWN_KEYS))


def read(draft: Draft, request: Request) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    draft.put("stack", "axolotl", keys, "base_model")
    draft.take("model", keys, "base_model")
    take_method(draft, keys)
    draft.take("seq_len", keys, "sequence_len")
    draft.assume("seq_len", 512)
    draft.take("micro_batch", keys, "micro_batch_size")
    draft.assume("micro_batch", 1)
    draft.take("grad_accum", keys, "gradient_accumulation_steps")
    draft.assume("grad_accum", 1)


def take_method(draft: Draft, keys: Keys) -> None:
    adapter = keys.get("adapter")
    four, eight = keys.get("load_in_4bit"), keys.get("load_in_8bit")
    if adapter is None:
        draft.assume("method", "full")
        return
    quantised = adapter == "qlora" or four or eight
    draft.put("method", "qlora" if quantised else "lora", keys, "adapter")
    if quantised:
        draft.put("quantization.format", "int8" if eight else "nf4", keys, "load_in_8bit", "load_in_4bit", "adapter")
    draft.take("lora.rank", keys, "lora_r")
