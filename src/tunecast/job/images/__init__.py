"""What the images of a sample are to a model: patches, tokens of its row, and the tensors they come in.

one_size.py  Image processors that make images of one size, some of them several tiles of an image: Gemma 3 and 4,
             LLaVA, InternVL, Llama 3.2
pixtral.py   Pixtral's image processor, as Mistral 3 has it: images of any size up to a longest edge, in steps of a
             token's side
qwen.py      Qwen's image processors and their kin: images of any size, cut into patches, a square of which is one
             token
smolvlm.py   SmolVLM's image processor: an image is resized until its longest edge is that of four tiles, cut into
             tiles, and seen once more as a whole

A file here is a family of image processors, by `model_type` in `FILES`. It has `processor(config)`, which gives a
`Processor`: how many pixels it leaves at most, in steps of how many a side may grow, and `pictures(vision)`, a pure
function from a job's `vision` (whose `pixels` are filled in by then) to `Pictures`. Images are square.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from math import isqrt
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.task_sections import Vision
from tunecast.records import NamedTuple, replace

FILES: Mapping[str, str] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), "qwen"),
    "gemma3": "one_size", "gemma4": "one_size", "internvl": "one_size", "llama4": "one_size", "llava": "one_size",
    "mistral3": "pixtral", "mllama": "one_size", "smolvlm": "smolvlm",
}  # fmt: skip
"""By config.json's `model_type`: the file that knows its processor."""


class Extra(NamedTuple):
    """A tensor that a processor puts into a batch beside tokens and mask."""

    name: str
    dtype: str
    """As torch calls it."""
    each: int
    """Entries of its first dimension that a row brings."""
    rest: tuple[int, ...] = ()
    """The other dimensions."""
    per_token: bool = False
    """Its second dimension is that of tokens."""

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        return (rows, length, *self.rest) if self.per_token else (rows * self.each, *self.rest)


class Picture(NamedTuple):
    """An image, or a video."""

    grid: tuple[int, int, int]
    """Patches: groups of frames, rows, columns. Of a tower that sees tiles of one size: their number, and patches of
    each."""
    tokens: int
    """What the language model sees of it."""
    marks: int = 0
    """Tokens around and between these."""
    is_video: bool = False

    @property
    def patches(self) -> int:
        frames, height, width = self.grid
        return frames * height * width


class Pictures(NamedTuple):
    """Of one sample; all samples of a batch have as many."""

    seen: tuple[Picture, ...]
    extras: tuple[Extra, ...]
    """In the order in which the processor gives them, between mask and labels."""

    @property
    def images(self) -> tuple[Picture, ...]:
        return tuple(picture for picture in self.seen if not picture.is_video)

    @property
    def videos(self) -> tuple[Picture, ...]:
        return tuple(picture for picture in self.seen if picture.is_video)

    @property
    def tokens(self) -> int:
        """Of a row: what images take, with their marks."""
        return sum(picture.tokens + picture.marks for picture in self.seen)


class Processor(NamedTuple):
    """Of one model."""

    most_pixels: int
    """That it leaves an image, or the only size it makes."""
    step: int | None
    """A side is a multiple of so many pixels; None: it makes images of one size."""
    pictures: Callable[[Vision], Pictures]


def processor_of(config: Mapping[str, Any]) -> Processor:
    """Raises `UsageError` for a model of text alone, `Unsupported` for one whose processor is not written down."""
    name = str(config.get("model_type"))
    if name not in FILES:
        if "vision_config" not in config:
            told = f"got images for {name}, which takes text alone. To fix: images 0, or a model with a vision tower"
            raise UsageError.at("vision.images", told)
        told = f"what {name} makes of images is not written down; known: {', '.join(FILES)}. To fix: trace your own"
        raise Unsupported.at("vision.images", f"{told} script, `tunecast trace -- train.py`")
    made: Processor = import_module(f"{__name__}.{FILES[name]}").processor(config)
    return made


def pixels_of(vision: Vision, config: Mapping[str, Any], room: int) -> int:
    """Of each image where the job says none: the most that the processor leaves and a row of `room` tokens holds."""
    processor = processor_of(config)
    if processor.step is None:
        return processor.most_pixels
    low, high = 1, isqrt(processor.most_pixels) // processor.step
    while low < high:
        middle = (low + high + 1) // 2
        if _tokens(processor, vision, middle) <= room:
            low = middle
        else:
            high = middle - 1
    return (low * processor.step) ** 2


def _tokens(processor: Processor, vision: Vision, steps: int) -> int:
    """With sides of so many steps."""
    pixels = (steps * (processor.step or 1)) ** 2
    return processor.pictures(replace(vision, pixels=pixels)).tokens


def require_room(vision: Vision, config: Mapping[str, Any], seq_len: int) -> None:
    """Tokens of images are part of a row: a trainer that cut some off would fail."""
    processor = processor_of(config)
    needed = processor.pictures(vision).tokens
    if needed <= seq_len:
        return
    fewer = replace(vision, pixels=pixels_of(vision, config, seq_len))
    fits = processor.step is not None and processor.pictures(fewer).tokens <= seq_len
    smaller = f"vision.pixels {fewer.pixels}" if fits else "fewer images"
    got = f"got rows of {seq_len} tokens, of which the images of a sample take {needed}"
    raise UsageError.at("seq_len", f"{got}. To fix: {smaller}, or seq_len from {needed} on")


def side_of(pixels: int, step: int) -> int:
    """Of a square image of at most so many pixels, in steps of `step`; at least one."""
    return max(1, isqrt(pixels) // step)
