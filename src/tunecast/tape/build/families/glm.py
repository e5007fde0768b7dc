"""GLM 4: half of each head rotated, neighbours together; gate and up in one projection; the 0414 models add norms
behind each block (transformers/models/glm/modeling_glm.py, models/glm4/modeling_glm4.py)."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import decoder, ops
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.families.cohere import rotated
from tunecast.tape.build.families.phi3 import FusedMLP
from tunecast.tape.build.modules import RMSNorm
from tunecast.tape.build.tensor import Machine, Tensor


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos = ops.unsqueeze(cos, 1)
    sin = ops.unsqueeze(sin, 1)
    cos = ops.repeat_interleave(ops.slice_(cos, -1, 0, cos.shape[-1] // 2), 2, 3)
    sin = ops.repeat_interleave(ops.slice_(sin, -1, 0, sin.shape[-1] // 2), 2, 3)
    width, whole = cos.shape[-1], q.shape[-1]
    q_rot, q_pass = ops.slice_(q, -1, 0, width), ops.slice_(q, -1, width, whole)
    k_rot, k_pass = ops.slice_(k, -1, 0, width), ops.slice_(k, -1, width, whole)
    q_embed = rotated(q_rot, cos, sin)
    k_embed = rotated(k_rot, cos, sin)
    q_embed = ops.cat([q_embed, q_pass], -1)
    k_embed = ops.cat([k_embed, k_pass], -1)
    return q_embed, k_embed


class Attention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config["attention_bias"]), False

    def placed(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        return apply_rotary(query_states, key_states, cos, sin)


class GlmLayer(decoder.Layer):
    attention_class: Any = Attention
    mlp_class: Any = FusedMLP


class GlmDecoder(decoder.Decoder):
    layer_class: Any = GlmLayer


class Glm(decoder.CausalLM):
    decoder_class: Any = GlmDecoder
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 2, "head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5,
    }  # fmt: skip


class Glm4Layer(GlmLayer):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.post_self_attn_layernorm = RMSNorm(machine, config["hidden_size"])
        self.post_mlp_layernorm = RMSNorm(machine, config["hidden_size"])

    def after_attention(self, hidden_states: Tensor) -> Tensor:
        return self.post_self_attn_layernorm(hidden_states)  # type: ignore[no-any-return]

    def after_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.post_mlp_layernorm(hidden_states)  # type: ignore[no-any-return]


class Glm4Decoder(decoder.Decoder):
    layer_class: Any = Glm4Layer


class Glm4(Glm):
    decoder_class: Any = Glm4Decoder
