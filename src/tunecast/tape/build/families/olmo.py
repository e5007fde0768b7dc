"""OLMo: norms without weights. OLMo 2 and 3: norms after a block, not before it, and of whole queries and keys; OLMo 3
adds windows (transformers/models/{olmo,olmo2,olmo3}/modeling_*.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import decoder, ops
from tunecast.tape.build.attention import rotated
from tunecast.tape.build.decoder import FULL, SLIDING, Config, GatedMLP
from tunecast.tape.build.modules import Module
from tunecast.tape.build.tensor import FLOAT32, Machine, Tensor


class OlmoNorm(Module):
    """The weight is multiplied in before the result goes back to its dtype."""

    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width)

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = ops.to(hidden_states, FLOAT32)
        variance = ops.mean(ops.power(hidden_states), -1)
        hidden_states = ops.multiply(hidden_states, ops.rsqrt(ops.shift(variance)))
        return ops.to(ops.multiply(self.weight, hidden_states), input_dtype)


class OlmoRotary(decoder.RotaryEmbedding):
    """In fp32 to the end."""

    def result_dtype(self, x: Tensor) -> Any:
        return FLOAT32


def apply_in_float32(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q_type, k_type = q.dtype, k.dtype
    cos = ops.unsqueeze(cos, 1)
    sin = ops.unsqueeze(sin, 1)
    q_embed = rotated(q, cos, sin)
    k_embed = rotated(k, cos, sin)
    return ops.to(q_embed, q_type), ops.to(k_embed, k_type)


class PlainNorm(Module):
    """No weight."""

    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)

    def forward(self, hidden_states: Tensor) -> Tensor:
        orig_dtype = hidden_states.dtype
        return ops.to(ops.layer_norm(ops.to(hidden_states, FLOAT32), None, None), orig_dtype)


class OlmoAttention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        if config.get("clip_qkv") is not None:
            raise Unsupported("model: the closed form does not know OLMo's clip_qkv", field="model")

    def projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_proj(hidden_states)
        key_states = self.k_proj(hidden_states)
        value_states = self.v_proj(hidden_states)
        query_states = ops.transpose(ops.view(query_states, *shape), 1, 2)
        key_states = ops.transpose(ops.view(key_states, *shape), 1, 2)
        value_states = ops.transpose(ops.view(value_states, *shape), 1, 2)
        return query_states, key_states, value_states

    def placed(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        return apply_in_float32(query_states, key_states, cos, sin)


class OlmoLayer(decoder.Layer):
    attention_class: Any = OlmoAttention
    norm_class: Any = PlainNorm


class OlmoDecoder(decoder.Decoder):
    layer_class: Any = OlmoLayer
    norm_class: Any = PlainNorm
    rotary_class: Any = OlmoRotary


class Olmo(decoder.CausalLM):
    decoder_class: Any = OlmoDecoder


class NormedAttention(decoder.SelfAttention):
    """Norms over all queries and all keys."""

    norm_class: Any = OlmoNorm

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.q_norm = self.norm_class(machine, self.q_proj.outputs)
        self.k_norm = self.norm_class(machine, self.k_proj.outputs)

    def projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_norm(self.q_proj(hidden_states))
        key_states = self.k_norm(self.k_proj(hidden_states))
        value_states = self.v_proj(hidden_states)
        query_states = ops.transpose(ops.view(query_states, *shape), 1, 2)
        key_states = ops.transpose(ops.view(key_states, *shape), 1, 2)
        value_states = ops.transpose(ops.view(value_states, *shape), 1, 2)
        return query_states, key_states, value_states


class Olmo2Attention(NormedAttention):
    def placed(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        return apply_in_float32(query_states, key_states, cos, sin)


class Olmo2Layer(decoder.Layer):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        Module.__init__(self, machine)  # its norms are others
        self.self_attn = Olmo2Attention(machine, config, index)
        self.mlp = GatedMLP(machine, config)
        self.post_attention_layernorm = OlmoNorm(machine, config["hidden_size"])
        self.post_feedforward_layernorm = OlmoNorm(machine, config["hidden_size"])

    def before_attention(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    def after_attention(self, hidden_states: Tensor) -> Tensor:
        return self.post_attention_layernorm(hidden_states)  # type: ignore[no-any-return]

    def before_mlp(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    def after_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.post_feedforward_layernorm(hidden_states)  # type: ignore[no-any-return]


class Olmo2Decoder(decoder.Decoder):
    layer_class: Any = Olmo2Layer
    norm_class: Any = OlmoNorm
    rotary_class: Any = OlmoRotary


class Olmo2(decoder.CausalLM):
    decoder_class: Any = Olmo2Decoder


class Olmo3Rotary(decoder.RotaryByKind):
    rotary_class: Any = OlmoRotary


class Olmo3Decoder(Olmo2Decoder):
    rotary_class: Any = Olmo3Rotary

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.mask_kinds = (FULL, SLIDING)


class Olmo3(decoder.CausalLM):
    decoder_class: Any = Olmo3Decoder
    defaults: ClassVar[Config] = {"sliding_window": 4096}

    def layer_types(self, config: Config) -> Sequence[str]:
        kinds = [SLIDING if (i + 1) % 4 else FULL for i in range(config["num_hidden_layers"])]
        return config.get("layer_types") or kinds
