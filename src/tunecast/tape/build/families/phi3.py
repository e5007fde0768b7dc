"""Phi 3 and 4: one projection for queries, keys and values, one for gate and up; Phi 4 mini rotates part of each head
(transformers/models/phi3/modeling_phi3.py)."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import decoder, ops
from tunecast.tape.build.attention import rotated
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.families import mistral
from tunecast.tape.build.modules import Activation, Dropout, Linear, Module
from tunecast.tape.build.tensor import Machine, Tensor


class FusedMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_up_proj = Linear(machine, hidden, 2 * inner)
        self.down_proj = Linear(machine, inner, hidden)
        self.activation_fn = Activation(machine, config.get("hidden_act", "silu"))

    def forward(self, hidden_states: Tensor) -> Tensor:
        up_states = self.gate_up_proj(hidden_states)
        gate, up_states = ops.chunk(up_states, 2, -1)
        up_states = ops.multiply(up_states, self.activation_fn(gate))
        return self.down_proj(up_states)  # type: ignore[no-any-return]


class FusedAttention(decoder.SelfAttention):
    def add_projections(self, machine: Machine, config: Config) -> None:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        self.query_width = heads * self.head_dim
        self.key_width = self.query_width // self.groups
        self.o_proj = Linear(machine, self.query_width, hidden)
        self.qkv_proj = Linear(machine, hidden, self.query_width + 2 * self.key_width)

    def projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        qkv = self.qkv_proj(hidden_states)
        query_states = ops.slice_(qkv, -1, 0, self.query_width)
        key_states = ops.slice_(qkv, -1, self.query_width, self.query_width + self.key_width)
        value_states = ops.slice_(qkv, -1, self.query_width + self.key_width, qkv.shape[-1])
        query_states = ops.transpose(ops.view(query_states, *shape), 1, 2)
        key_states = ops.transpose(ops.view(key_states, *shape), 1, 2)
        value_states = ops.transpose(ops.view(value_states, *shape), 1, 2)
        return query_states, key_states, value_states

    def placed(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        return apply_partly(query_states, key_states, cos, sin)


def apply_partly(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The head's first dimensions are rotated, the rest, if any, put behind them."""
    cos = ops.unsqueeze(cos, 1)
    sin = ops.unsqueeze(sin, 1)
    width, whole = cos.shape[-1], q.shape[-1]
    q_rot, q_pass = ops.slice_(q, -1, 0, width), ops.slice_(q, -1, width, whole)
    k_rot, k_pass = ops.slice_(k, -1, 0, width), ops.slice_(k, -1, width, whole)
    q_embed = ops.cat([rotated(q_rot, cos, sin), q_pass], -1)
    k_embed = ops.cat([rotated(k_rot, cos, sin), k_pass], -1)
    return q_embed, k_embed


class Layer(decoder.Layer):
    attention_class: Any = FusedAttention
    mlp_class: Any = FusedMLP

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.resid_attn_dropout = Dropout(machine, config.get("resid_pdrop") or 0.0)
        self.resid_mlp_dropout = Dropout(machine, config.get("resid_pdrop") or 0.0)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
        hidden_states = ops.add(residual, self.resid_attn_dropout(hidden_states))
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = ops.add(residual, self.resid_mlp_dropout(hidden_states))
        return hidden_states


class Rotary(decoder.RotaryEmbedding):
    also_longrope = ("su", "yarn")


class Decoder(mistral.Decoder):
    layer_class: Any = Layer
    rotary_class: Any = Rotary


class CausalLM(mistral.CausalLM):
    decoder_class: Any = Decoder
    defaults: ClassVar[Config] = {"original_max_position_embeddings": 4096}
