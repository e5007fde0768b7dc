"""Models written before the names of Llama's parts became everybody's: the same frame around other names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from tunecast.errors import UsageError
from tunecast.job.kernels import ATTENTIONS
from tunecast.tape.build import decoder
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.tensor import Tensor

GPT_NAMES = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}


class CausalLM(decoder.CausalLM):
    """Body and head by the names the family gives them."""

    body, block_list, embedding, head = "transformer", "h", "wte", "lm_head"
    has_head_bias = False
    usual_names: ClassVar[Mapping[str, str]] = {}
    """Of entries in config.json, by the family's own names (`attribute_map` of its configuration class)."""

    attentions: tuple[str, ...] = ATTENTIONS
    """What the family has; where it has no sdpa, transformers takes eager."""

    def __init__(self, machine: Machine, config: Config) -> None:
        Module.__init__(self, machine)
        self.model_type = str(config["model_type"])
        self.choose_attention(config["model_type"])
        named = {self.usual_names.get(name, name): value for name, value in config.items()}
        config = {**self.defaults, **named}
        setattr(self, self.body, self.decoder_class(machine, config))
        self.vocabulary = config["vocab_size"]
        setattr(self, self.head, Linear(machine, self.head_inputs(config), self.vocabulary, self.has_head_bias))
        self.tied = bool(config.get("tie_word_embeddings", False))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        hidden_states = self.base()(input_ids, attention_mask=attention_mask)
        logits = self.output_embedding()(hidden_states[:])
        if self.machine.era.widens_logits(self.model_type):
            logits = logits.float()
        return self.output(logits, labels)

    def head_inputs(self, config: Config) -> int:
        return int(config["hidden_size"])

    def base(self) -> Any:
        return getattr(self, self.body)

    def layers(self) -> Iterator[Any]:
        return iter(getattr(self.base(), self.block_list))

    def input_embedding(self) -> Any:
        return getattr(self.base(), self.embedding)

    def output_embedding(self) -> Any:
        return getattr(self, self.head)

    def tie(self) -> None:
        if self.tied:
            self.output_embedding().weight = self.input_embedding().weight

    def choose_attention(self, model_type: str) -> None:
        machine = self.machine
        if machine.attention == "sdpa" and "sdpa" not in self.attentions:
            machine.use_eager_attention()
        if machine.attention not in self.attentions:
            raise UsageError.at(
                "attention", f"{model_type} has no {machine.attention}; it has {', '.join(self.attentions)}"
            )
