"""StarCoder2 (transformers/models/starcoder2): Mistral with biases, layer norms, a plain MLP, and dropout."""

from __future__ import annotations

from typing import ClassVar

from tunecast.tape.build import decoder, ops
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.families import mistral
from tunecast.tape.build.modules import Activation, LayerNorm, Linear, Module
from tunecast.tape.build.tensor import Machine, Tensor


class Attention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return config["use_bias"], config["use_bias"]


class MLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, inner, bias = config["hidden_size"], config["intermediate_size"], config["use_bias"]
        self.c_fc = Linear(machine, hidden, inner, bias)
        self.c_proj = Linear(machine, inner, hidden, bias)
        self.act = Activation(machine, config["hidden_act"])
        self.residual_dropout = config["residual_dropout"]

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.c_fc(hidden_states)
        hidden_states = self.act(hidden_states)
        hidden_states = self.c_proj(hidden_states)
        hidden_states = ops.dropout(hidden_states, self.residual_dropout)
        return hidden_states


class Layer(decoder.Layer):
    attention_class = Attention
    mlp_class = MLP
    norm_class = LayerNorm


class Decoder(mistral.Decoder):
    layer_class = Layer
    norm_class = LayerNorm

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.embedding_dropout = config["embedding_dropout"]

    def entering(self, inputs_embeds: Tensor) -> Tensor:
        return ops.dropout(inputs_embeds, self.embedding_dropout)


class CausalLM(mistral.CausalLM):
    decoder_class = Decoder
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "sliding_window": None, "use_bias": True,
        "residual_dropout": 0.0, "embedding_dropout": 0.0, "tie_word_embeddings": True,
    }  # fmt: skip
