"""StarCoder2 (transformers/models/starcoder2): Mistral with biases, layer norms, a plain MLP, and dropout."""

from __future__ import annotations

from typing import ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.families import mistral
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import LayerNorm, PlainMLP
from tunecast.tape.build.tensor import Tensor


class Attention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return config["use_bias"], config["use_bias"]


class MLP(PlainMLP):
    up, down = "c_fc", "c_proj"

    def __init__(self, machine: Machine, config: Config) -> None:
        size = config["hidden_size"], config["intermediate_size"]
        super().__init__(machine, *size, config["hidden_act"], config["use_bias"])
        self.residual_dropout = config["residual_dropout"]

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = super().forward(hidden_states)
        hidden_states = F.dropout(hidden_states, self.residual_dropout)
        return hidden_states


class Decoder(decoder.Decoder):
    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        self.embedding_dropout = config["embedding_dropout"]

    def first_hidden_states(self, inputs_embeds: Tensor) -> Tensor:
        return F.dropout(inputs_embeds, self.embedding_dropout)


class CausalLM(mistral.CausalLM):
    decoder_class = Decoder
    attention_class = Attention
    mlp_class = MLP
    norm_class = LayerNorm
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "sliding_window": None, "use_bias": True,
        "residual_dropout": 0.0, "embedding_dropout": 0.0, "tie_word_embeddings": True,
    }  # fmt: skip
