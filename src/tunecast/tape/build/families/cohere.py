"""Command R and its successors: attention and MLP side by side, neighbouring dimensions rotated together
(transformers/models/cohere/modeling_cohere.py, models/cohere2/modeling_cohere2.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import rotate_both
from tunecast.tape.build.decoder import FULL, SLIDING, CheckpointingLayer, Config, GatedMLP
from tunecast.tape.build.families.olmo import windows_but_every
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.tensor import Tensor


class CohereNorm(Module):
    variance_epsilon = 1e-5

    def __init__(self, machine: Machine, *shape: int) -> None:
        super().__init__(machine)
        self.weight = self.parameter(*shape)

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.float()
        mean = hidden_states.mean(-1, keepdim=True)
        variance = (hidden_states - mean).pow(2).mean(-1, keepdim=True)
        hidden_states = (hidden_states - mean) * F.rsqrt(variance + self.variance_epsilon)
        hidden_states = self.weight.float() * hidden_states
        return hidden_states.to(input_dtype)


def rotate_half(x: Tensor) -> Tensor:
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    rot_x = F.stack([-x2, x1], -1).view(*x.shape)
    return rot_x


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x) * sin


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    dtype = q.dtype
    q = q.float()
    k = k.float()
    q_embed, k_embed = rotate_both(q, k, cos, sin, rotate)
    return q_embed.to(dtype), k_embed.to(dtype)


class Attention(decoder.SelfAttention):
    rotary = staticmethod(apply_rotary)

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.use_qk_norm = bool(config.get("use_qk_norm", False))
        if self.use_qk_norm:
            self.q_norm = CohereNorm(machine, config["num_attention_heads"], self.head_dim)
            self.k_norm = CohereNorm(machine, config["num_attention_heads"] // self.groups, self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_proj(hidden_states).view(*shape)
        key_states = self.k_proj(hidden_states).view(*shape)
        value_states = self.v_proj(hidden_states).view(*shape)
        if self.use_qk_norm:
            query_states = self.q_norm(query_states)
            key_states = self.k_norm(key_states)
        query_states = query_states.transpose(1, 2)
        key_states = key_states.transpose(1, 2)
        value_states = value_states.transpose(1, 2)
        return query_states, key_states, value_states


class Layer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine)
        self.self_attn = family.attention_class(machine, config, index)
        self.mlp = GatedMLP(machine, config)
        self.input_layernorm = CohereNorm(machine, config["hidden_size"])

    def forward(self, hidden_states: Tensor, **where: Any) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states_attention, _ = self.self_attn(hidden_states, **where)
        hidden_states_mlp = self.mlp(hidden_states)
        hidden_states = residual + hidden_states_attention + hidden_states_mlp
        return hidden_states


class Cohere(decoder.CausalLM):
    layer_class = Layer
    attention_class = Attention
    norm_class = CohereNorm
    defaults: ClassVar[Config] = {"tie_word_embeddings": True}
    logit_steps = (lambda logits: logits * 0.0625,)


class Cohere2Attention(Attention):
    """Only windowed layers know positions."""

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        if self.window is None:
            return query_states, key_states
        return super().apply_rotary(query_states, key_states, position_embeddings)


class Cohere2(Cohere):
    attention_class = Cohere2Attention
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {"tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 4}

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, {**config, "head_dim": None, "use_qk_norm": False})

    def layer_types(self, config: Config) -> Sequence[str]:
        return windows_but_every(config["sliding_window_pattern"], config)
