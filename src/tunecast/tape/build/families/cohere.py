"""Command R and its successors: attention and MLP side by side, neighbouring dimensions rotated together
(transformers/models/cohere/modeling_cohere.py, models/cohere2/modeling_cohere2.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder, ops
from tunecast.tape.build.decoder import FULL, SLIDING, CheckpointingLayer, Config, GatedMLP
from tunecast.tape.build.modules import Module
from tunecast.tape.build.tensor import FLOAT32, Machine, Tensor


class CohereNorm(Module):
    def __init__(self, machine: Machine, *shape: int) -> None:
        super().__init__(machine)
        self.weight = self.parameter(*shape)

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = ops.to(hidden_states, FLOAT32)
        mean = ops.mean(hidden_states, -1)
        variance = ops.mean(ops.power(ops.subtract(hidden_states, mean)), -1)
        hidden_states = ops.multiply(ops.subtract(hidden_states, mean), ops.rsqrt(ops.shift(variance)))
        hidden_states = ops.multiply(ops.to(self.weight, FLOAT32), hidden_states)
        return ops.to(hidden_states, input_dtype)


def rotate_half(x: Tensor) -> Tensor:
    x1 = ops.slice_(x, -1, 0, x.shape[-1], 2)
    x2 = ops.slice_(x, -1, 1, x.shape[-1], 2)
    rot_x = ops.view(ops.stack_last([ops.negative(x2), x1]), *x.shape)
    return rot_x


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return ops.add(ops.multiply(x, cos), ops.multiply(rotate_half(x), sin))


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    dtype = q.dtype
    q = ops.to(q, FLOAT32)
    k = ops.to(k, FLOAT32)
    cos = ops.unsqueeze(cos, 1)
    sin = ops.unsqueeze(sin, 1)
    q_embed = rotated(q, cos, sin)
    k_embed = rotated(k, cos, sin)
    return ops.to(q_embed, dtype), ops.to(k_embed, dtype)


class Attention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.use_qk_norm = bool(config.get("use_qk_norm", False))
        if self.use_qk_norm:
            self.q_norm = CohereNorm(machine, config["num_attention_heads"], self.head_dim)
            self.k_norm = CohereNorm(machine, config["num_attention_heads"] // self.groups, self.head_dim)

    def projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = ops.view(self.q_proj(hidden_states), *shape)
        key_states = ops.view(self.k_proj(hidden_states), *shape)
        value_states = ops.view(self.v_proj(hidden_states), *shape)
        if self.use_qk_norm:
            query_states = self.q_norm(query_states)
            key_states = self.k_norm(key_states)
        query_states = ops.transpose(query_states, 1, 2)
        key_states = ops.transpose(key_states, 1, 2)
        value_states = ops.transpose(value_states, 1, 2)
        return query_states, key_states, value_states

    def placed(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        return apply_rotary(query_states, key_states, cos, sin)


class Layer(CheckpointingLayer):
    attention_class: Any = Attention

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine)
        self.self_attn = self.attention_class(machine, config, index)
        self.mlp = GatedMLP(machine, config)
        self.input_layernorm = CohereNorm(machine, config["hidden_size"])

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states_attention, _ = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
        hidden_states_mlp = self.mlp(hidden_states)
        hidden_states = ops.add(ops.add(residual, hidden_states_attention), hidden_states_mlp)
        return hidden_states


class Decoder(decoder.Decoder):
    layer_class: Any = Layer
    norm_class: Any = CohereNorm


class Cohere(decoder.CausalLM):
    decoder_class: Any = Decoder
    defaults: ClassVar[Config] = {"tie_word_embeddings": True}
    after_head = (ops.scale,)


class Cohere2Attention(Attention):
    """Only windowed layers know positions."""

    def placed(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        if self.window is None:
            return query_states, key_states
        return super().placed(query_states, key_states, position_embeddings)


class Cohere2Layer(Layer):
    attention_class: Any = Cohere2Attention


class Cohere2Decoder(Decoder):
    layer_class: Any = Cohere2Layer

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.mask_kinds = (FULL, SLIDING)


class Cohere2(Cohere):
    decoder_class: Any = Cohere2Decoder
    defaults: ClassVar[Config] = {"tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 4}

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, {**config, "head_dim": None, "use_qk_norm": False})

    def layer_types(self, config: Config) -> Sequence[str]:
        every = config["sliding_window_pattern"]
        kinds = [SLIDING if (i + 1) % every else FULL for i in range(config["num_hidden_layers"])]
        return config.get("layer_types") or kinds
