"""Pixtral's image processor, as Mistral 3 has it: images of any size up to a longest edge, in steps of a token's side.

Source   transformers/models/pixtral/image_processing_pixtral.py, `get_resize_output_image_size`, and
         processing_pixtral.py, `PixtralProcessor.replace_image_token`: behind each row of tokens stands a mark, the
         last one the image's end. Longest edge: `image_size` of config.json, which is that of the processor of
         mistralai/Mistral-Small-3.1-24B-Instruct-2503 (1,540).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.images import Extra, Picture, Pictures, Processor, side_of
from tunecast.job.images.one_size import refuse_video, whole_image
from tunecast.job.task_sections import Vision


def processor(config: Mapping[str, Any]) -> Processor:
    vision = config["vision_config"]
    patch, merged = vision.get("patch_size", 16), config.get("spatial_merge_size", 2)
    edge, step = vision.get("image_size", 1024), patch * merged

    def pictures(asked: Vision) -> Pictures:
        refuse_video(asked)
        whole_image(asked)
        tokens = side_of(min(asked.pixels or edge**2, edge**2), step)
        picture = Picture((1, tokens * merged, tokens * merged), tokens**2, tokens)
        shape = (vision.get("num_channels", 3), tokens * step, tokens * step)
        pixels = Extra("pixel_values", "float32", asked.images, shape)
        return Pictures((picture,) * asked.images, (pixels, Extra("image_sizes", "int64", asked.images, (2,))))

    return Processor(edge**2, step, pictures)
