"""OLMoE: norms over all queries and all keys, experts in every layer (transformers/models/olmoe/modeling_olmoe.py)."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import decoder, ops
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.experts import Experts, refuse_router_loss
from tunecast.tape.build.families import qwen2_moe
from tunecast.tape.build.families.olmo import NormedAttention
from tunecast.tape.build.modules import Module, RMSNorm
from tunecast.tape.build.tensor import Machine, Tensor

DEFAULTS: Config = {"num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False}


class SparseMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.gate = qwen2_moe.router(machine, config)
        size = config["num_experts"], config["hidden_size"], config["intermediate_size"]
        self.experts = Experts(machine, *size, config.get("hidden_act", "silu"))

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = ops.view(hidden_states, -1, hidden_dim)
        _, top_k_weights, top_k_index = self.gate(hidden_states)
        final_hidden_states = self.experts(hidden_states, top_k_index, top_k_weights)
        final_hidden_states = ops.reshape(final_hidden_states, batch_size, sequence_length, hidden_dim)
        return final_hidden_states


class SelfAttention(NormedAttention):
    norm_class: Any = RMSNorm


class Layer(decoder.Layer):
    attention_class: Any = SelfAttention
    mlp_class: Any = SparseMoe


class Decoder(decoder.Decoder):
    layer_class: Any = Layer


class CausalLM(decoder.CausalLM):
    decoder_class: Any = Decoder
    defaults: ClassVar[Config] = DEFAULTS

    def __init__(self, machine: Machine, config: Config) -> None:
        refuse_router_loss(config)
        if config.get("clip_qkv") is not None:
            raise Unsupported("model: the closed form does not know clip_qkv of config.json")
        super().__init__(machine, config)
