"""Gemma 3 with its vision tower, which a batch of text loads and does not run
(transformers/models/gemma3/modeling_gemma3.py, `Gemma3ForConditionalGeneration`)."""

from __future__ import annotations

from typing import Any

from tunecast.tape.build.decoder import Config
from tunecast.tape.build.families.gemma import Gemma3, GemmaNorm
from tunecast.tape.build.families.towers import SiglipVision
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.tensor import Tensor


class Projector(Module):
    def __init__(self, machine: Machine, width: int, text_width: int) -> None:
        super().__init__(machine)
        self.mm_input_projection_weight = self.parameter(width, text_width)
        self.mm_soft_emb_norm = GemmaNorm(machine, width)


class Parts(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        vision, text = config["vision_config"], config["text_config"]
        self.vision_tower = SiglipVision(machine, vision)
        self.multi_modal_projector = Projector(machine, vision["hidden_size"], text["hidden_size"])
        self.language_model: Any = Gemma3.decoder_class(machine, text, Gemma3)
        self.language_model.mask_kinds = tuple(sorted(set(text["layer_types"])))  # there in the order of a hash table

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.language_model.embed_tokens(input_ids)
        masks = self.language_model.masks(attention_mask, inputs_embeds)
        return self.language_model(inputs_embeds=inputs_embeds, attention_mask=masks)


class Gemma3WithVision(Gemma3):
    def __init__(self, machine: Machine, config: Config) -> None:
        Module.__init__(self, machine)
        text = self.complete(config["text_config"])
        self.model = Parts(machine, {**config, "text_config": text})
        self.vocabulary = text["vocab_size"]
        self.lm_head = Linear(machine, text["hidden_size"], self.vocabulary)
        self.tied = bool(text["tie_word_embeddings"])

    def layers(self) -> Any:
        return iter(self.model.language_model.layers)

    def input_embedding(self) -> Any:
        return self.model.language_model.embed_tokens

    def tie(self) -> None:
        if self.tied:
            self.lm_head.weight = self.input_embedding().weight
