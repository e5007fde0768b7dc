"""Phi 3 and 4: one projection for queries, keys and values, one for gate and up; Phi 4 mini rotates part of each head
(transformers/models/phi3/modeling_phi3.py)."""

from __future__ import annotations

from typing import ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import rotate
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.families import mistral
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Dropout, Linear, Module
from tunecast.tape.build.tensor import Tensor


class FusedMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_up_proj = Linear(machine, hidden, 2 * inner)
        self.down_proj = Linear(machine, inner, hidden)
        self.activation_fn = Activation(machine, config.get("hidden_act", "silu"))

    def forward(self, hidden_states: Tensor) -> Tensor:
        up_states = self.gate_up_proj(hidden_states)
        gate, up_states = up_states.chunk(2, -1)
        up_states = up_states * self.activation_fn(gate)
        return self.down_proj(up_states)


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The head's first dimensions are rotated, the rest, if any, put behind them."""
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    rotary_dim = cos.shape[-1]
    q_rot, q_pass = q[..., :rotary_dim], q[..., rotary_dim:]
    k_rot, k_pass = k[..., :rotary_dim], k[..., rotary_dim:]
    q_embed = F.cat([rotate(q_rot, cos, sin), q_pass], -1)
    k_embed = F.cat([rotate(k_rot, cos, sin), k_pass], -1)
    return q_embed, k_embed


class FusedAttention(decoder.SelfAttention):
    rotary = staticmethod(apply_rotary)

    def add_projections(self, machine: Machine, config: Config) -> None:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        self.query_width = heads * self.head_dim
        self.key_width = self.query_width // self.groups
        self.o_proj = Linear(machine, self.query_width, hidden)
        self.qkv_proj = Linear(machine, hidden, self.query_width + 2 * self.key_width)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        qkv = self.qkv_proj(hidden_states)
        query_states = qkv[..., : self.query_width]
        key_states = qkv[..., self.query_width : self.query_width + self.key_width]
        value_states = qkv[..., self.query_width + self.key_width :]
        query_states = query_states.view(*shape).transpose(1, 2)
        key_states = key_states.view(*shape).transpose(1, 2)
        value_states = value_states.view(*shape).transpose(1, 2)
        return query_states, key_states, value_states


class Layer(decoder.Layer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, index, family)
        self.resid_attn_dropout = Dropout(machine, config.get("resid_pdrop") or 0.0)
        self.resid_mlp_dropout = Dropout(machine, config.get("resid_pdrop") or 0.0)

    def attention_branch(self, hidden_states: Tensor) -> Tensor:
        return self.resid_attn_dropout(hidden_states)

    def mlp_branch(self, hidden_states: Tensor) -> Tensor:
        return self.resid_mlp_dropout(hidden_states)


class Rotary(decoder.RotaryEmbedding):
    also_longrope = ("su", "yarn")


class CausalLM(mistral.CausalLM):
    layer_class = Layer
    attention_class = FusedAttention
    mlp_class = FusedMLP
    rotary_class = Rotary
    defaults: ClassVar[Config] = {"original_max_position_embeddings": 4096}
