"""Images to patches and tokens, by the arithmetic of transformers' processors redone on paper: Gemma, LLaVA, InternVL,
Llama 3.2, Mistral 3."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import Unsupported, UsageError
from tunecast.job.images import Pictures, processor_of
from tunecast.job.registry import bundled_config
from tunecast.job.task_sections import Vision
from tunecast.records import replace


def seen(model: str, **asked: Any) -> Pictures:
    config = bundled_config(model)
    processor = processor_of(config)
    vision = Vision(**{"images": 1, **asked})
    if vision.pixels is None:
        vision = replace(vision, pixels=processor.most_pixels)
    return processor.pictures(vision)


def shapes(pictures: Pictures, rows: int = 2, length: int = 512) -> dict[str, tuple[int, ...]]:
    return {extra.name: extra.shape(rows, length) for extra in pictures.extras}


def test_gemma_3_has_256_tokens_of_896_pixels_and_four_marks():
    pictures = seen("gemma-3-4b")
    assert (pictures.images[0].grid, pictures.images[0].tokens, pictures.images[0].marks) == ((1, 64, 64), 256, 4)
    assert shapes(pictures) == {"pixel_values": (2, 3, 896, 896), "token_type_ids": (2, 512)}
    assert list(shapes(pictures)) == ["pixel_values", "token_type_ids"]  # types come last


def test_crops_of_pan_and_scan_are_images_more():
    assert seen("gemma-3-4b", tiles=3).tokens == 3 * (256 + 4)
    assert shapes(seen("gemma-3-4b", tiles=3))["pixel_values"] == (6, 3, 896, 896)


def test_gemma_4_fills_280_tokens_with_the_largest_square():
    """16 x 16 squares of three by three patches of 16 pixels: 768 pixels, of 803 that 2,520 patches would have."""
    pictures = seen("gemma-4-e4b")
    assert (pictures.images[0].tokens, pictures.images[0].marks, pictures.images[0].patches) == (256, 2, 48 * 48)
    assert shapes(pictures)["pixel_values"] == (2, 280 * 9, 3 * 16 * 16)
    assert shapes(pictures)["image_position_ids"] == (2, 2520, 2)


def test_llava_has_a_token_for_each_patch_of_336_pixels():
    assert seen("llava-1.5-7b").tokens == (336 // 14) ** 2 == 576


@pytest.mark.parametrize(
    ("asked", "tiles"),
    [
        ({}, 1),
        ({"pixels": 448 * 448}, 1),
        ({"pixels": 2 * 448 * 448 + 1}, 4),
        ({"pixels": 10**7}, 9),
        ({"tiles": 6}, 6),
    ],
)
def test_internvl_cuts_tiles_and_adds_a_thumbnail(asked, tiles):
    pictures = seen("internvl3-8b", **asked)
    whole = tiles + (tiles > 1)
    assert pictures.tokens == 256 * whole + 2
    assert shapes(pictures)["pixel_values"] == (2 * whole, 3, 448, 448)


def test_llama_3_2_gives_the_tower_four_tiles_and_the_text_one_token():
    pictures = seen("llama-3.2-11b-vision", images=2)
    assert pictures.tokens == 2
    assert shapes(pictures) == {
        "cross_attention_mask": (2, 512, 2, 4), "pixel_values": (2, 2, 4, 3, 560, 560), "aspect_ratio_ids": (2, 2),
        "aspect_ratio_mask": (2, 2, 4),
    }  # fmt: skip


@pytest.mark.parametrize(("pixels", "side"), [(None, 55), (1540 * 1540, 55), (280 * 280, 10), (300 * 300, 10)])
def test_mistral_3_has_a_token_for_28_by_28_pixels_and_a_mark_for_each_row(pixels, side):
    pictures = seen("mistral-small-3.1-24b", pixels=pixels)
    assert (pictures.images[0].tokens, pictures.images[0].marks) == (side * side, side)
    assert shapes(pictures) == {"pixel_values": (2, 3, side * 28, side * 28), "image_sizes": (2, 2)}


def test_what_a_model_does_not_do_is_refused_by_name():
    with pytest.raises(Unsupported, match=r"vision\.frames"):
        seen("llava-1.5-7b", frames=4)
    with pytest.raises(UsageError, match=r"vision\.tiles"):
        seen("llava-1.5-7b", tiles=4)
    with pytest.raises(UsageError, match=r"vision\.tiles"):
        seen("llama-3.2-11b-vision", tiles=5)


@pytest.mark.parametrize(("pixels", "across"), [(384 * 384, 1), (768 * 768, 2), (None, 4), (10**8, 4)])
def test_smolvlm_sees_tiles_of_384_pixels_and_the_whole(pixels, across):
    """81 tokens each: 27 x 27 patches, nine of which are one."""
    pictures = seen("smolvlm2-2.2b", pixels=pixels)
    tiles = across**2 if across > 1 else 0
    assert pictures.images[0].tokens == (tiles + 1) * 81
    assert pictures.images[0].marks == 2 * tiles + (across if tiles else 0) + 3
    assert shapes(pictures)["pixel_values"] == (2, tiles + 1, 3, 384, 384)


@pytest.mark.parametrize(
    ("asked", "tiles"), [({}, 1), ({"pixels": 337 * 337}, 4), ({"pixels": 10**8}, 16), ({"tiles": 2}, 2)]
)
def test_llama_4_covers_an_image_with_tiles_of_336_pixels(asked, tiles):
    """144 tokens each: 24 x 24 patches, four of which are one."""
    pictures = seen("llama-4-scout", **asked)
    count = tiles + (tiles > 1)
    assert (pictures.images[0].tokens, pictures.images[0].marks) == (144 * count, 3 + (tiles if tiles > 1 else 0))
    assert shapes(pictures)["pixel_values"] == (2 * count, 3, 336, 336)
