"""transformers' Trainer of a model with a vision tower, as a script calls it: a collator makes tokens and pixels, in
the order in which the model's processor gives them."""

from __future__ import annotations

from typing import Any

import torch
from common import adapters, model_of, settings
from peft import get_peft_model
from transformers import AutoModelForImageTextToText, Trainer, TrainingArguments

IMAGE, VIDEO = 1, 2
"""`mm_token_type_ids` of a token that stands for a part of an image or of a video."""


class Collator:
    """Rows of text with images in the middle: each has the tokens of its grid between its two marks."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case

    def __call__(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        case, rows = self.case, len(samples)
        kinds = torch.zeros(rows, case["length"], dtype=torch.int64)
        place = 15  # words of a chat before the first image
        for kind, grid in case["grids"]:
            tokens = grid[0] * grid[1] * grid[2] // case["merged"]
            kinds[:, place : place + tokens] = kind
            place += tokens + 2
        words = 3 + torch.arange(rows * case["length"]).view(rows, -1) % 900
        pads = {IMAGE: case["config"]["image_token_id"], VIDEO: case["config"]["video_token_id"]}
        ids = words.clone()
        for kind, pad in pads.items():
            ids[kinds == kind] = pad
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds}
        for kind, pixels, grids in (
            (IMAGE, "pixel_values", "image_grid_thw"),
            (VIDEO, "pixel_values_videos", "video_grid_thw"),
        ):
            found = [grid for of, grid in case["grids"] if of == kind] * rows
            if found:
                patches = sum(t * h * w for t, h, w in found)
                batch |= {pixels: torch.zeros(patches, case["patch_values"]), grids: torch.tensor(found)}
        return batch | {"labels": ids.clone()}


def train(case: dict[str, Any], collator: Any = Collator) -> None:
    model = model_of(case, AutoModelForImageTextToText)
    chosen = adapters(case)
    if chosen is not None:
        model = get_peft_model(model, chosen)
        if case["recomputed"]:
            model.enable_input_require_grads()
    for name, parameter in model.named_parameters():
        if any(part in name for part in case["frozen"]):
            parameter.requires_grad_(False)
    arguments = TrainingArguments(remove_unused_columns=False, **settings(case))
    Trainer(model, arguments, collator(case), train_dataset=[{"sample": n} for n in range(16)]).train()
