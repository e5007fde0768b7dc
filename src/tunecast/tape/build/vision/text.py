"""Models with eyes around a language model of any family, which config.json names."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build.decoder import Config
from tunecast.tape.build.families import causal_lm
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.vision.parts import WithParts


def text_model(machine: Machine, text: Config) -> Any:
    """`AutoModel.from_config(config.text_config)`: a decoder without its head."""
    family = causal_lm(text["model_type"])
    return family.decoder_class(machine, text, family)


class WithAnyText(WithParts):
    """Becomes a model of its text's family when it is made: what that does to logits and how it completes config.json
    is the family's."""

    config_defaults: ClassVar[Config] = {}
    """What the configuration class of the whole takes where config.json is silent."""

    def __new__(cls, machine: Machine, config: Config) -> Any:
        family = causal_lm(config["text_config"]["model_type"])
        if issubclass(cls, family):
            return super().__new__(cls)
        return super().__new__(type(cls.__name__, (cls, family), {}))

    def __init__(self, machine: Machine, config: Config) -> None:
        Module.__init__(self, machine)
        config = {**self.config_defaults, **config}
        text = self.complete(config["text_config"])
        self.model_type = str(text.get("model_type"))
        self.model = self.parts_class(machine, {**config, "text_config": text})
        self.vocabulary = text["vocab_size"]
        self.lm_head = Linear(machine, text["hidden_size"], self.vocabulary)
        self.tied = bool(config["tie_word_embeddings"])
