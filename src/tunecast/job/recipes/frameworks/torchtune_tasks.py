"""What torchtune trains for beyond SFT on text: preferences, distillation, images. None of it is written down for its
own code: that of another stack stands for it, in torchtune's dtypes, and what it does otherwise is reported.

Recipes  recipes/lora_dpo_single_device.py and full_dpo_distributed.py, `concatenated_forward`; torchtune/rlhf/
         rewards.py, `get_batch_log_probs`; recipes/knowledge_distillation_single_device.py, `_loss_step`;
         torchtune/modules/loss/kd_losses.py, `ForwardKLWithChunkedOutputLoss`
Images   torchtune/models/llama3_2_vision/_model_builders.py, `lora_llama3_2_vision_11b`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.images import assume_images

PREFERENCES = "LLaMA-Factory's, which takes a log_softmax of all logits as torchtune does, stands for it"
TEACHER = (
    "torchtune's two losses go over logits in chunks; TRL's GKDTrainer stands for them, which holds more copies of them"
)
BETA = 0.1
"""torchtune/rlhf/loss/dpo.py, `DPOLoss`."""
FROZEN = ("decoder_trainable", "encoder_trainable", "fusion_trainable")


def take_images(draft: Draft, keys: Keys, builder: str, components: Iterable[str]) -> None:
    """Adapters of a model that sees: those of the frozen decoder, a hundredth of its weights, are counted too. Trained
    whole, tower and cross-attention are trained and the decoder between them is not, which no job says."""
    if "vision" not in builder:
        if any(".multimodal." in name for name in components):
            draft.refuse("vision", "images beside text")
        return
    if "lora" not in builder:
        draft.refuse("vision", "the tower and layers of cross-attention are trained, the others are frozen")
        return
    sees = any(".multimodal." in name for name in components)
    draft.fields["stack"] = "transformers"
    what = "images" if sees else "text alone, with a tower that is not held"
    draft.not_modelled(keys, "model._component_", f"transformers' own code is taken, of {what}")
    if sees:
        assume_images(draft)
    if any(keys.document.get(f"model.{name}") == "frozen" for name in FROZEN):
        name = next(name for name in FROZEN if keys.document.get(f"model.{name}") == "frozen")
        draft.not_modelled(keys, f"model.{name}", "adapters of all parts are counted")
    keys.ignore(*(f"model.{name}" for name in FROZEN), "model.image_size")


def take_task_keys(draft: Draft, keys: Keys, model_name: Callable[[str], str | None]) -> None:
    task = draft.fields.get("task")
    if task == "dpo":
        draft.fields["stack"] = "llama-factory"
        draft.not_modelled(keys, "loss._component_", f"torchtune's own DPO is not written down: {PREFERENCES}")
        draft.take("preference.beta", keys, "loss.beta")
        draft.assume("preference.beta", BETA)
        if keys.has("ref_checkpointer"):
            draft.put("preference.reference", "model", keys, "ref_checkpointer._component_")
        keys.without("ref_checkpointer.*")
    elif task == "distill":
        draft.fields["stack"] = "trl"
        builder = str(keys.get("teacher_model._component_")).rpartition(".")[2]
        name = model_name(builder.removeprefix("lora_").removeprefix("qlora_"))
        if name is not None:
            draft.put("distill.teacher", name, keys, "teacher_model._component_")
        draft.assume("distill.on_policy", 0.0)
        draft.not_modelled(keys, "kd_loss._component_" if keys.has("kd_loss") else "teacher_model._component_", TEACHER)
        keys.without("teacher_checkpointer.*", "kd_loss.*", "kd_ratio", "loss.*", "teacher_model.*")
        if is_on(draft.fields.get("data.packing")):
            draft.not_modelled(keys, "dataset.packed", "rows are taken as padded")
            draft.fields["data.packing"] = False
