"""The same Trainer, of models whose processors give other tensors: a case lists them (`tensors`), in their order."""

from __future__ import annotations

from typing import Any

import torch
import vision


class Collator:
    """Rows of text with the tokens of their images behind each other."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case

    def __call__(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        case, rows = self.case, len(samples)
        kinds = torch.zeros(rows, case["length"], dtype=torch.int64)
        kinds[:, 5 : 5 + case["tokens"]] = vision.IMAGE
        ids = 3 + torch.arange(rows * case["length"]).view(rows, -1) % 900
        ids[kinds == vision.IMAGE] = case["config"]["image_token_id"]
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for name, kind, shape in case["tensors"]:
            if kind == "types":
                batch[name] = kinds
            elif kind == "pixels":
                batch[name] = torch.zeros(rows * shape[0], *shape[1:])
            elif kind == "ones":
                batch[name] = torch.ones(rows, *shape, dtype=torch.int64)
            else:  # the same whole numbers for each row
                batch[name] = torch.tensor(shape * rows)
        return batch | {"labels": ids.clone()}


def tell_pooled(found: int) -> None:
    """How many of Gemma 4's pooled patches are no padding is in numbers that nobody has here: as many as there are."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionPooler

    pool = Gemma4VisionPooler.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        states, mask = pool(self, *args, **kwargs)
        told = torch.zeros(mask.shape, dtype=torch.bool)
        told[:, :found] = True
        return states, told.to(mask.device)

    if pool.__qualname__.startswith("Gemma4VisionPooler"):
        Gemma4VisionPooler.forward = forward


def tell_seen() -> None:
    """That SmolVLM's tiles have no padding is in pixels."""
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionTransformer

    see = SmolVLMVisionTransformer.forward

    def forward(self: Any, pixel_values: Any, patch_attention_mask: Any, **kwargs: Any) -> Any:
        told = torch.ones(patch_attention_mask.shape, dtype=torch.bool).to(pixel_values.device)
        return see(self, pixel_values=pixel_values, patch_attention_mask=told, **kwargs)

    if see.__name__ != "forward" or see.__module__ != __name__:
        SmolVLMVisionTransformer.forward = forward


def train(case: dict[str, Any]) -> None:
    if case["config"]["model_type"] == "smolvlm":
        tell_seen()
    if case["config"]["model_type"] == "gemma4":
        tell_pooled(case["tokens"])
    vision.train(case, Collator)
