"""NeMo Automodel's trainings with images: `FinetuneRecipeForVLM`, `processor`, `freeze_config`.

Defaults  nemo_automodel 0.5.0: recipes/vlm/finetune.py; components/utils/model_utils.py, `apply_parameter_freezing`;
          components/datasets/vlm/collate_fns.py, `default_collate_fn`.
"""

from __future__ import annotations

from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.automodel_parallel import class_name
from tunecast.job.recipes.images import assume_images, image_tokens, take_frozen_parts

VISION_RECIPE = "FinetuneRecipeForVLM"
VISION_STUDENT = "KnowledgeDistillationRecipeForVLM"
VISION_MODEL = "NeMoAutoModelForImageTextToText"
FROZEN = {
    "tower": ("freeze_config.freeze_vision_tower", True),
    "language": ("freeze_config.freeze_language_model", False),
}
"""Where there is a `freeze_config`; without one all is trained."""
TEXT_ALONE = ("tulu3", "text_mix")
"""Parts of the names of components/datasets/vlm/datasets.py that make rows without images."""
WITHOUT_EFFECT = (
    *("processor.pretrained_model_name_or_path", "processor._target_", "processor.padding_side", "processor.revision"),
    *("processor.trust_remote_code", "processor.min_pixels", "freeze_config.freeze_embeddings"),
    *("freeze_config.*audio*", "freeze_config.*video*", "packed_sequence.pretokenize", "packed_sequence.packing_ratio"),
    *("packed_sequence.collate_max_length", "packed_sequence.max_length", "packed_sequence.inject_fake_images"),
    *("packed_sequence.drop_long_samples", "packed_sequence.balance_media_tokens"),
)
"""`apply_parameter_freezing` does not read `freeze_embeddings`."""


def trains_on_images(document: Document, model: str) -> bool:
    """`model`: the class that `model._target_` names."""
    recipe = class_name(document.get("recipe"), document.get("recipe._target_"))
    return recipe in (VISION_RECIPE, VISION_STUDENT) or (recipe == "" and model == VISION_MODEL)


def take_images(draft: Draft, keys: Keys) -> None:
    data = str(keys.document.get("dataset._target_"))
    if ".audio." in data:
        draft.refuse("audio", "the model takes sound beside text")
    if any(part in data for part in TEXT_ALONE):
        return
    draft.take("vision.pixels", keys, "processor.max_pixels")
    assume_images(draft)
    if keys.document.get("freeze_config") is not None:
        take_frozen_parts(draft, keys, FROZEN)


def take_rows_with_images(draft: Draft, keys: Keys) -> None:
    """The length that samples are padded to, where a file says one."""
    pack = ("packed_sequence.pack_size", "packed_sequence.packed_sequence_size")
    if keys.get(*pack):
        draft.put("seq_len", keys.get(*pack), keys, *pack)
        name = next(each for each in pack if keys.has(each))
        draft.not_modelled(keys, name, "a pack is told as one sample with as many images as one has")
    keys.ignore("packed_sequence")
    if "seq_len" not in draft.fields:
        draft.take("seq_len", keys, "dataloader.collate_fn.max_length", "dataset.max_length", "dataset.seq_length")
    room = 1024 + image_tokens(draft)
    draft.assume("seq_len", room, "tunecast: nothing is cut, so that rows are as long as the data's")
    draft.assume("data.packing", False)
