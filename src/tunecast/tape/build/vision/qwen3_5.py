"""Qwen3.5 with its vision tower, which is Qwen3-VL's without features of other depths.

Source   transformers/models/{qwen3_5,qwen3_5_moe}/modeling_*.py, `Qwen3_5VisionModel.forward`, `Qwen3_5Model.forward`,
         `Qwen3_5TextModel.forward`. `AutoModelForCausalLM` makes the text part alone (families/delta.py).
"""

from __future__ import annotations

from typing import Any

from tunecast.tape.build.families.delta import GridDecoder, Qwen35, Qwen35Moe
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision import qwen3


class Qwen35Tower(qwen3.Qwen3Tower):
    has_deep_mergers = False


class GridsDecoder(GridDecoder):
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Any = None, inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if position_ids is None or inputs_embeds is None:
            return super().forward(input_ids, attention_mask, inputs_embeds)
        masks = self.masks(attention_mask, inputs_embeds)
        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        for decoder_layer, kind in zip(self.layers, self.kinds, strict=True):
            hidden_states = decoder_layer(
                hidden_states, attention_mask=masks[kind], position_embeddings=position_embeddings, position_ids=None
            )
        hidden_states = self.norm(hidden_states)
        return hidden_states


class Parts(qwen3.Parts):
    """`Qwen3_5Model`."""

    tower_class = Qwen35Tower
    is_deep = False

    def family_of(self, text: Any) -> Any:
        return Qwen35MoeWithVision if text.get("num_experts") else Qwen35WithVision


class OfQwen35(qwen3.OfQwen3):
    parts_class = Parts
    decoder_class = GridsDecoder
    projector_paths = ("model.visual.merger",)


class Qwen35WithVision(OfQwen35, Qwen35):
    """`Qwen3_5ForConditionalGeneration`."""

    rotary_class = Qwen35.rotary_class


class Qwen35MoeWithVision(OfQwen35, Qwen35Moe):
    """`Qwen3_5MoeForConditionalGeneration`."""

    rotary_class = Qwen35.rotary_class
