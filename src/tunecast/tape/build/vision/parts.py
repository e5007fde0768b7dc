"""The model of several parts around the language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import decoder
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.tensor import Tensor


class WithParts(decoder.CausalLM):
    """A language model among other parts, all in one `model`; see the package's docstring."""

    parts_class: Any
    tower_paths: Sequence[str] = ("model.vision_tower",)
    projector_paths: Sequence[str] = ("model.multi_modal_projector",)

    def __init__(self, machine: Machine, config: Config) -> None:
        Module.__init__(self, machine)
        text = self.complete(text_part(config))
        self.model = self.parts_class(machine, {**config, "text_config": text})
        self.vocabulary = text["vocab_size"]
        self.lm_head = Linear(machine, text["hidden_size"], self.vocabulary)
        self.tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **images: Any) -> Any:
        """`images`: what a batch has besides text, by the names the model takes it."""
        outputs = self.model(input_ids, attention_mask=attention_mask, **images)
        hidden_states = first_of(outputs)
        logits = self.lm_head(hidden_states[:])
        for step in self.logit_steps:
            logits = step(logits)
        if self.machine.era.widens_logits(self.model_type):
            logits = logits.float()
        given = self.output(logits, labels)
        return (*given, *outputs[1:]) if self.gives_logits and isinstance(outputs, tuple) else given

    def layers(self) -> Any:
        return iter(self.model.language_model.layers)

    def towers(self) -> Sequence[Any]:
        return [self.model.vision_tower]

    def part_of(self, path: str) -> str:
        """Tower, projector or language: which part a module, by its path, is of."""
        found = [
            (len(begin), part)
            for part, begins in (("tower", self.tower_paths), ("projector", self.projector_paths))
            for begin in begins
            if f"{path}.".startswith(f"{begin}.")
        ]
        return max(found)[1] if found else "language"

    def input_embedding(self) -> Any:
        return self.model.language_model.embed_tokens

    def tie(self) -> None:
        if self.tied:
            self.lm_head.weight = self.input_embedding().weight


def text_part(config: Config) -> Config:
    """In a part of its own, or beside the others, as Qwen's older files have it."""
    return config.get("text_config") or {name: value for name, value in config.items() if name != "vision_config"}
