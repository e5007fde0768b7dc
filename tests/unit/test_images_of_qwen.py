"""Qwen's images, redone on paper: patches, tokens, tensors, windows; and whole jobs with them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tunecast.errors import TunecastError, Unsupported, UsageError
from tunecast.job import job_from_dict
from tunecast.job.images import Picture, pixels_of, processor_of
from tunecast.job.registry import bundled_config
from tunecast.job.task_sections import Vision
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.build.standing import layer_number
from tunecast.tape.build.vision import windows
from tunecast.tape.build.vision.mrope import pieces
from tunecast.tape.build.vision.qwen2_5 import window_lengths
from tunecast.tape.card import Card
from tunecast.tape.fold import folded_program
from tunecast.tape.op import Alloc
from tunecast.tape.shorten import steps_of

QWEN2_5, QWEN3 = bundled_config("qwen2.5-vl-7b"), bundled_config("qwen3-vl-8b")
SMALL: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 9,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "image_token_id": 290, "video_token_id": 291,
    "vision_config": {
        "depth": 4, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
        "window_size": 56, "fullatt_block_indexes": [1],
    },
}  # fmt: skip


def job_of(**values: Any) -> Any:
    given = {"model": "small", "method": "full", "seq_len": 128, "micro_batch": 2, "weights_dtype": "bfloat16"}
    return job_from_dict({**given, "vision": {"images": 1, "pixels": 168 * 168}, **values})


def test_an_image_of_a_million_pixels() -> None:
    """1000 x 1000 pixels: 35 steps of 28 fit into each side, two patches each; both frames of a pair are the image."""
    pictures = processor_of(QWEN2_5).pictures(Vision(images=2, pixels=1_000_000))
    assert pictures.images == (Picture((1, 70, 70), 35 * 35, 2),) * 2
    assert pictures.tokens == 2 * (1225 + 2)
    kinds, pixels, grids = pictures.extras
    assert kinds.shape(3, 4096) == (3, 4096)
    assert pixels.shape(3, 4096) == (3 * 2 * 4900, 3 * 2 * 14 * 14)
    assert grids.shape(3, 4096) == (3 * 2, 3)


def test_a_video_of_three_frames_is_two_pairs() -> None:
    pictures = processor_of(QWEN3).pictures(Vision(frames=3, pixels=320 * 320))
    assert pictures.videos == (Picture((2, 20, 20), 2 * 10 * 10, 2, is_video=True),)
    assert [extra.name for extra in pictures.extras][1:3] == ["pixel_values_videos", "video_grid_thw"]


@pytest.mark.parametrize(("room", "side"), [(1024, 31 * 28), (1027, 32 * 28), (1026, 32 * 28), (20_000, 3584)])
def test_images_fill_a_row_or_are_as_large_as_the_processor_leaves(room: int, side: int) -> None:
    """A token stands for 28 x 28 pixels, and an image has two marks: 31 x 31 + 2 = 963, 32 x 32 + 2 = 1026. More than
    12,845,056 pixels, 3584 x 3584, the processor leaves to no image."""
    assert pixels_of(Vision(images=1), QWEN2_5, room) == side**2


def test_pixels_are_filled_in() -> None:
    job = fill_in(job_from_dict({"model": "qwen2.5-vl-7b", "seq_len": 1024, "vision": {"images": 1}}), QWEN2_5)
    assert job.vision.pixels == 868**2


def test_windows_of_an_image() -> None:
    """Ten patches a side are five tokens: two windows of two, and one of one."""
    assert window_lengths(Picture((1, 10, 10), 25), merged=2, window=2) == [16, 16, 8, 16, 16, 8, 8, 8, 4]
    assert sum(window_lengths(Picture((3, 10, 10), 75), 2, 2)) == 300


def test_pieces_of_a_row() -> None:
    """15 words of a chat, an image, its two marks, another, and what is left."""
    picture = Picture((1, 8, 8), 16, 2)
    assert list(pieces((picture, picture), 128)) == [15, picture, 2, picture, 128 - 15 - 2 - 32]


def test_towers_are_no_layers() -> None:
    assert layer_number("model.visual.blocks.3.attn") == -1
    assert layer_number("model.language_model.layers.3.mlp") == 3


@pytest.mark.parametrize(
    ("values", "config", "error", "told"),
    [
        ({"seq_len": 32}, SMALL, UsageError, "seq_len: got rows of 32 tokens, of which the images of a sample take 38"),
        ({}, bundled_config("llama-3.1-8b"), UsageError, "takes text alone"),
        ({}, {"model_type": "seeing", "vision_config": {}}, Unsupported, "seeing makes of images is not written down"),
    ],
)
def test_what_is_refused(values: Any, config: Any, error: type[TunecastError], told: str) -> None:
    with pytest.raises(error, match=told):
        build(job_of(**values), config, [128], Card())


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"stack": "unsloth", "method": "lora"}, "vision.images"),
        ({"stack": "trl", "data": {"packing": True}}, "data.packing"),
    ],
)
def test_what_no_job_has(values: Any, field: str) -> None:
    with pytest.raises(UsageError) as found:
        job_of(**values)
    assert found.value.field == field


@pytest.mark.parametrize("checkpointing", [False, True])
def test_few_layers_stand_for_all(checkpointing: bool) -> None:
    """The tower is built whole, also where it has as many blocks as layers are built."""
    job = job_of(gradient_checkpointing=checkpointing)
    every = build(job, SMALL, [job.seq_len] * len(steps_of(job)), Card(), keeps_ops=False)
    whole = folded_program(every, None, list(range(len(steps_of(job)))))
    assert fold_job(job, SMALL, Card()).program.most_alive_bytes == whole.most_alive_bytes


def test_windows_together_are_as_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the two numbers of eight bytes that a call keeps of its random state."""
    config = copy.deepcopy(SMALL)
    config["num_hidden_layers"] = 1

    def allocated() -> int:
        events = build(job_of(), config, [128], Card()).events
        return sum(event.nbytes for event in events if isinstance(event, Alloc) and event.nbytes > 64)

    apart = allocated()
    monkeypatch.setattr(windows, "MOST_PARTS", 0)
    assert allocated() == pytest.approx(apart, rel=1e-3)


def test_frozen_parts_have_no_state() -> None:
    """LLaMA-Factory freezes tower and projector: as many bytes of optimizer as the language model alone has."""

    def held(**values: Any) -> int:
        return fold_job(job_of(weights_dtype="float32", **values), SMALL, Card()).program.most_alive_bytes

    everything = {"vision": {"images": 1, "pixels": 168 * 168, "trained": ["tower", "projector", "language"]}}
    assert held(stack="llama-factory") < held(stack="llama-factory", **everything)
