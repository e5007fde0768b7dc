"""SmolVLM's image processor: an image is resized until its longest edge is that of four tiles, cut into tiles, and seen
once more as a whole.

Source   transformers/models/smolvlm/image_processing_smolvlm.py, `SmolVLMImageProcessor.split_images`, and
         processing_smolvlm.py, `_prompt_split_image` and `_prompt_single_image`: a mark before each tile, its place as
         one token, a line feed behind each row. Longest edge: four tiles, as in the class and in the
         preprocessor_config.json of HuggingFaceTB/SmolVLM2-2.2B-Instruct.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from tunecast.job.images import Extra, Picture, Pictures, Processor, side_of
from tunecast.job.images.one_size import refuse_video
from tunecast.job.task_sections import Vision

MOST_TILES = 4
"""Of a side."""
AROUND_WHOLE = 3
"""A mark, <global-img>, and a mark."""


def processor(config: Mapping[str, Any]) -> Processor:
    vision = config["vision_config"]
    side, patch = vision.get("image_size", 224), vision.get("patch_size", 32)
    patches, channels = side // patch, vision.get("num_channels", 3)
    tokens = patches**2 // config.get("scale_factor", 2) ** 2

    def pictures(asked: Vision) -> Pictures:
        refuse_video(asked)
        most = asked.pixels or (MOST_TILES * side) ** 2
        across = isqrt(asked.tiles) if asked.tiles else min(MOST_TILES, side_of(most, side))
        cut = across**2 if across > 1 else 0
        marks = 2 * cut + (across if cut else 0) + AROUND_WHOLE
        count = (cut + 1) * asked.images
        picture = Picture((cut + 1, patches, patches), (cut + 1) * tokens, marks)
        extras = (
            Extra("pixel_values", "float32", 1, (count, channels, side, side)),
            Extra("pixel_attention_mask", "int64", 1, (count, side, side)),
        )
        return Pictures((picture,) * asked.images, extras)

    return Processor((MOST_TILES * side) ** 2, side, pictures)
