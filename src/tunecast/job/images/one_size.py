"""Image processors that make images of one size, some of them several tiles of an image: Gemma 3 and 4, LLaVA,
InternVL, Llama 3.2 and 4.

Source   Gemma 3: transformers/models/gemma3/processing_gemma3.py, `Gemma3Processor.replace_image_token`: an image of so
         many tokens between a mark and two line feeds on either side; with pan and scan its crops are images besides,
         off by default (`do_pan_and_scan`). Token types come behind the pixels.
         Gemma 4: transformers/models/gemma4/image_processing_gemma4.py, `get_aspect_ratio_preserving_size` and
         `Gemma4ImageProcessor`, and processing_gemma4.py, `Gemma4Processor.replace_image_token`.
         LLaVA: transformers/models/llava/processing_llava.py, `LlavaProcessor.replace_image_token`.
         InternVL: transformers/models/internvl/processing_internvl.py, `InternVLProcessor.replace_image_token`, and
         transformers/models/got_ocr2/image_processing_got_ocr2.py, `get_optimal_tiled_canvas` and
         `crop_image_to_patches`: as many tiles as the grid of the nearest aspect ratio has, and a thumbnail where they
         are several.
         Llama 3.2: transformers/models/mllama/image_processing_mllama.py, `MllamaImageProcessor`, and
         processing_mllama.py, `MllamaProcessor`.
         Llama 4: transformers/models/llama4/image_processing_llama4.py, `get_best_fit` (of canvases that need no image
         to shrink the smallest, else the largest), and processing_llama4.py, `Llama4Processor._prompt_split_image`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil, isqrt
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.images import Extra, Picture, Pictures, Processor
from tunecast.job.task_sections import Vision
from tunecast.records import NamedTuple

TYPES = Extra("token_type_ids", "int64", 1, per_token=True)


class ImageTile(NamedTuple):
    """What the tower sees at once."""

    side: int
    """Pixels."""
    patch: int
    tokens: int
    """What the language model sees of it."""
    channels: int = 3

    @property
    def pixels(self) -> int:
        return self.side**2

    @property
    def patches(self) -> int:
        """Of a side."""
        return self.side // self.patch


def processor(config: Mapping[str, Any]) -> Processor:
    made: Processor = PROCESSORS[config["model_type"]](config)
    return made


def of_tiles(
    tile: ImageTile, marks: int, tiles_of: Callable[[Vision], int], more: tuple[Extra, ...] = (), marks_a_tile: int = 0
) -> Processor:
    """Images cut into tiles of one size, with so many marks around an image and around each tile."""

    def pictures(vision: Vision) -> Pictures:
        refuse_video(vision)
        count = tiles_of(vision)
        picture = Picture((count, tile.patches, tile.patches), count * tile.tokens, marks + count * marks_a_tile)
        pixels = Extra("pixel_values", "float32", vision.images * count, (tile.channels, tile.side, tile.side))
        return Pictures((picture,) * vision.images, (pixels, *more))

    return Processor(tile.pixels, None, pictures)


def refuse_video(vision: Vision) -> None:
    if vision.frames:
        told = f"got {vision.frames}; what this model makes of videos is not written down. To fix: frames 0"
        raise Unsupported.at("vision.frames", f"{told}, or images in their place")


def whole_image(vision: Vision) -> int:
    if vision.tiles is not None and vision.tiles > 1:
        told = f"got {vision.tiles}, and this model sees an image whole. To fix: leave vision.tiles out"
        raise UsageError.at("vision.tiles", told)
    return 1


def tile_of(config: Mapping[str, Any], side: int, patch: int, tokens: int) -> ImageTile:
    vision = config["vision_config"]
    first = [value if isinstance(value, int) else value[0] for value in (
        vision.get("image_size", side), vision.get("patch_size", patch),
    )]  # fmt: skip
    return ImageTile(first[0], first[1], tokens, vision.get("num_channels", 3))


# ------------------------------------------------------------------------------------------------------------- Gemma 3

GEMMA3_MARKS = 4
"""<start_of_image> and <end_of_image>, each with two line feeds, which are one token."""


def gemma3(config: Mapping[str, Any]) -> Processor:
    tile = tile_of(config, 224, 16, config.get("mm_tokens_per_image") or 256)
    return of_tiles(tile, 0, lambda vision: vision.tiles or 1, (TYPES,), GEMMA3_MARKS)


# ------------------------------------------------------------------------------------------------------------- Gemma 4

GEMMA4_MARKS = 2
"""<start_of_image> and <end_of_image>."""


def gemma4(config: Mapping[str, Any]) -> Processor:
    """Images are resized to the largest squares of pooled patches that a number of tokens has room for, and padded to
    that number, each patch a row of its pixels."""
    vision = config["vision_config"]
    patch, pooled = vision.get("patch_size", 16), vision.get("pooling_kernel_size", 3)
    most = vision.get("default_output_length", 280)
    side = isqrt(most)

    def pictures(asked: Vision) -> Pictures:
        refuse_video(asked)
        whole_image(asked)
        patches = most * pooled**2
        extras = (
            Extra("mm_token_type_ids", "int64", 1, per_token=True),
            Extra("pixel_values", "float32", asked.images, (patches, 3 * patch**2)),
            Extra("image_position_ids", "int64", asked.images, (patches, 2)),
        )
        return Pictures((Picture((1, side * pooled, side * pooled), side**2, GEMMA4_MARKS),) * asked.images, extras)

    return Processor((side * pooled * patch) ** 2, None, pictures)


# --------------------------------------------------------------------------------------------------------------- LLaVA


def llava(config: Mapping[str, Any]) -> Processor:
    tile = tile_of(config, 224, 32, 0)
    whole = config.get("vision_feature_select_strategy", "default") != "default"
    return of_tiles(tile._replace(tokens=tile.patches**2 + whole), 0, whole_image)


# ------------------------------------------------------------------------------------------------------------ InternVL

MOST_TILES = 12
"""`max_patches` of transformers/models/got_ocr2/image_processing_got_ocr2.py, `GotOcr2ImageProcessor`."""
INTERN_MARKS = 2
"""<img> and </img>."""


def internvl(config: Mapping[str, Any]) -> Processor:
    tile = tile_of(config, 448, 14, config.get("image_seq_length") or 256)
    return of_tiles(tile, INTERN_MARKS, partial(tiles_and_thumbnail, tile))


def tiles_and_thumbnail(tile: ImageTile, vision: Vision) -> int:
    tiles = vision.tiles or square_tiles(tile, vision.pixels or tile.pixels)
    return tiles + (tiles > 1)


def square_tiles(tile: ImageTile, pixels: int) -> int:
    """Of a square image: more of them as long as they cover no more than twice its area."""
    grids = (side**2 for side in range(1, MOST_TILES + 1) if side**2 <= MOST_TILES)
    return max(count for count in grids if count == 1 or 2 * pixels > tile.pixels * count)


# --------------------------------------------------------------------------------------------------- Llama 3.2 Vision


def mllama(config: Mapping[str, Any]) -> Processor:
    """All tiles that an image may have are in the batch, whether it fills them or not; the text has one token for each
    image, and a mask says which of its tokens see which tiles."""
    tile, tiles = tile_of(config, 448, 14, 1), config["vision_config"].get("max_num_tiles", 4)

    def pictures(vision: Vision) -> Pictures:
        refuse_video(vision)
        if vision.tiles is not None and vision.tiles > tiles:
            told = f"got {vision.tiles}, and this model cuts an image into at most {tiles}"
            raise UsageError.at("vision.tiles", f"{told}. To fix: vision.tiles {tiles}")
        images = vision.images
        shape = (images, tiles, tile.channels, tile.side, tile.side)
        extras = (
            Extra("cross_attention_mask", "int64", 1, (images, tiles), per_token=True),
            Extra("pixel_values", "float32", 1, shape),
            Extra("aspect_ratio_ids", "int64", 1, (images,)),
            Extra("aspect_ratio_mask", "int64", 1, (images, tiles)),
        )
        return Pictures((Picture((tiles, tile.patches, tile.patches), 1),) * images, extras)

    return Processor(tile.pixels * tiles, None, pictures)


# ------------------------------------------------------------------------------------------------------------- Llama 4

LLAMA4_TILES = 16
"""`max_patches` of transformers/models/llama4/image_processing_llama4.py, `Llama4ImageProcessor`."""


def llama4(config: Mapping[str, Any]) -> Processor:
    """As many tiles as cover a square image, and the whole besides where they are several; three marks, and one behind
    each tile."""
    vision = config["vision_config"]
    tile = tile_of(config, 448, 14, 0)
    tile = tile._replace(tokens=int(tile.patches**2 * vision.get("pixel_shuffle_ratio", 0.5) ** 2))

    def pictures(asked: Vision) -> Pictures:
        refuse_video(asked)
        tiles = asked.tiles or min(LLAMA4_TILES, max(1, ceil(isqrt(asked.pixels or tile.pixels) / tile.side)) ** 2)
        count = tiles + (tiles > 1)
        marks = 3 + (tiles if tiles > 1 else 0)
        pixels = Extra("pixel_values", "float32", asked.images * count, (tile.channels, tile.side, tile.side))
        return Pictures(
            (Picture((count, tile.patches, tile.patches), count * tile.tokens, marks),) * asked.images, (pixels,)
        )

    return Processor(tile.pixels, None, pictures)


PROCESSORS: Mapping[str, Callable[[Mapping[str, Any]], Processor]] = {
    "gemma3": gemma3, "gemma4": gemma4, "internvl": internvl, "llama4": llama4, "llava": llava, "mllama": mllama,
}  # fmt: skip
