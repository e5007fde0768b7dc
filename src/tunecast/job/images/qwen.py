"""Qwen's image processors and their kin: images of any size, cut into patches, a square of which is one token.

Source   transformers/models/qwen2_vl/image_processing_qwen2_vl.py, `smart_resize` and `Qwen2VLImageProcessor.patchify`:
         sides are multiples of a patch times the patches of a token's side; an image is given to the tower as a pair of
         frames, both the same. transformers/models/qwen2_vl/video_processing_qwen2_vl.py: frames in pairs, the last
         repeated where one is missing. transformers/models/qwen2_5_vl/processing_qwen2_5_vl.py and
         transformers/processing_utils.py, `ProcessorMixin.__call__`: which tensors, in which order. Most pixels: the
         preprocessor_config.json of Qwen/Qwen2-VL-7B-Instruct and Qwen/Qwen2.5-VL-7B-Instruct (`max_pixels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.images import Extra, Picture, Pictures, Processor, side_of
from tunecast.job.task_sections import Vision
from tunecast.records import NamedTuple

MARKS = 2
"""<|vision_start|> and <|vision_end|>."""


class Patches(NamedTuple):
    """How an image is cut."""

    side: int = 14
    """Pixels of a patch."""
    merged: int = 2
    """Patches of a token's side."""
    frames: int = 2
    """Of a patch."""
    channels: int = 3
    most_pixels: int = 12845056
    tells_time: bool = False
    """The processor says how far apart frames are (`second_per_grid_ts`)."""

    @property
    def step(self) -> int:
        return self.side * self.merged

    @property
    def values(self) -> int:
        return self.channels * self.frames * self.side**2


LATER = Patches(side=16, most_pixels=16777216)
"""preprocessor_config.json of Qwen/Qwen3-VL-8B-Instruct and of Qwen/Qwen3.5-9B (`size.longest_edge`)."""
USUAL = {
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), LATER),
    "qwen2_5_vl": Patches(tells_time=True),
}


def processor(config: Mapping[str, Any]) -> Processor:
    vision = config["vision_config"]
    usual = USUAL.get(str(config.get("model_type")), Patches())
    patches = Patches(
        vision.get("patch_size", usual.side),
        vision.get("spatial_merge_size", usual.merged),
        vision.get("temporal_patch_size", usual.frames),
        vision.get("in_channels", usual.channels),
        usual.most_pixels,
        usual.tells_time,
    )
    return Processor(patches.most_pixels, patches.step, lambda vision: pictures(vision, patches))


def pictures(vision: Vision, patches: Patches) -> Pictures:
    cells = side_of(vision.pixels or patches.most_pixels, patches.step)
    images = [picture(1, cells, patches)] * vision.images
    groups = -(-vision.frames // patches.frames)
    videos = [picture(groups, cells, patches, is_video=True)] if vision.frames else []
    extras = [Extra("mm_token_type_ids", "int64", 1, per_token=True)]
    for name, grid, seen in (
        ("pixel_values", "image_grid_thw", images),
        ("pixel_values_videos", "video_grid_thw", videos),
    ):
        if seen:
            count = sum(each.patches for each in seen)
            extras += [Extra(name, "float32", count, (patches.values,)), Extra(grid, "int64", len(seen), (3,))]
    if videos and patches.tells_time:
        extras.append(Extra("second_per_grid_ts", "float32", len(videos)))
    return Pictures((*images, *videos), tuple(extras))


def picture(groups: int, cells: int, patches: Patches, *, is_video: bool = False) -> Picture:
    side = cells * patches.merged
    return Picture((groups, side, side), groups * cells**2, MARKS, is_video)
