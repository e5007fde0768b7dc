"""What files say of images: how many a sample has, how large they are, which parts of a model are trained on them.

How many images a sample has is the data's, which few files tell: then one is taken, and that is said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.values import whole

ONE_IMAGE = "tunecast: how many images a sample has is the data's"
TOKEN_PIXELS = 28 * 28
PARTS = ("tower", "projector", "language")


def assume_images(draft: Draft) -> None:
    """Where nothing says how many there are; of videos none."""
    if "vision.frames" not in draft.fields:
        draft.assume("vision.images", 1, ONE_IMAGE)


def image_tokens(draft: Draft) -> int:
    """Of a row, where a file says how large images are: as Qwen2.5-VL counts them, whose tokens are among the
    smallest, 28 x 28 pixels of one image or of two frames (transformers' `Qwen2VLImageProcessor`)."""
    pixels, images, frames = (whole(draft.fields.get(f"vision.{name}")) or 0 for name in ("pixels", "images", "frames"))
    return -(-pixels // TOKEN_PIXELS) * (images + -(-frames // 2))


def frozen_words(frozen: Mapping[str, tuple[str, bool]], parts: Collection[str]) -> dict[str, object]:
    """Switches that freeze all parts but these."""
    return {name: part not in parts for part, (name, _) in frozen.items()}


def take_frozen_parts(
    draft: Draft, keys: Keys, frozen: Mapping[str, tuple[str, bool]], parts: tuple[str, ...] = PARTS
) -> None:
    """`vision.trained`, of switches that freeze: by part its key, and whether it is frozen where nothing is said."""
    said = [name for name, _ in frozen.values() if keys.get(name) is not None]
    trained = [
        part for part in parts if part not in frozen or not is_on(keys.get(frozen[part][0], default=frozen[part][1]))
    ]
    if said:
        draft.put("vision.trained", trained, keys, *said)
    else:
        draft.assume("vision.trained", trained)
