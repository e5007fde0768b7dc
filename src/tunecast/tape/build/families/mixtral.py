"""Mixtral: Mistral with experts (models/mixtral/modeling_mixtral.py)."""

from __future__ import annotations

from typing import ClassVar

from tunecast.tape.build import decoder, ops
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.experts import Experts, Router, divide_in_place, refuse_router_loss, row_sums, top_k
from tunecast.tape.build.families import mistral
from tunecast.tape.build.modules import Module
from tunecast.tape.build.tensor import FLOAT32, Machine, Tensor

DEFAULTS: Config = {
    "num_key_value_heads": 8, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


class MixtralRouter(Router):
    """Its scores stay in fp32."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = ops.reshape(hidden_states, -1, hidden_states.shape[-1])
        router_logits = ops.linear(hidden_states, self.weight)
        router_probs = ops.softmax(ops.to(router_logits, FLOAT32))
        router_top_value, router_indices = top_k(router_probs, self.top_k)
        router_top_value = divide_in_place(router_top_value, row_sums(router_top_value))
        return router_logits, router_top_value, router_indices


class SparseMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        experts, hidden = config["num_local_experts"], config["hidden_size"]
        self.gate = MixtralRouter(machine, experts, hidden, config["num_experts_per_tok"])
        inner = config["intermediate_size"]
        self.experts = Experts(machine, experts, hidden, inner, config.get("hidden_act", "silu"))

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = ops.view(hidden_states, -1, hidden_dim)
        _, top_k_weights, top_k_index = self.gate(hidden_states)
        hidden_states = self.experts(hidden_states, top_k_index, top_k_weights)
        hidden_states = ops.reshape(hidden_states, batch_size, sequence_length, hidden_dim)
        return hidden_states


class Layer(decoder.Layer):
    mlp_class = SparseMoe


class Decoder(mistral.Decoder):
    layer_class = Layer


class CausalLM(mistral.CausalLM):
    decoder_class = Decoder
    defaults: ClassVar[Config] = DEFAULTS

    def __init__(self, machine: Machine, config: Config) -> None:
        refuse_router_loss(config)
        super().__init__(machine, config)
