"""GLM 4: half of each head rotated, neighbours together; gate and up in one projection; the 0414 models add norms
behind each block (transformers/models/glm/modeling_glm.py, models/glm4/modeling_glm4.py)."""

from __future__ import annotations

from typing import ClassVar

from tunecast.tape.build import attention, decoder
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.families.cohere import rotate
from tunecast.tape.build.families.phi3 import FusedMLP
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import RMSNorm
from tunecast.tape.build.tensor import Tensor


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    cos = cos[..., : cos.shape[-1] // 2].repeat_interleave(2, 3)
    sin = sin[..., : sin.shape[-1] // 2].repeat_interleave(2, 3)
    return attention.rotate_part(q, k, cos, sin, rotate)


class Attention(decoder.SelfAttention):
    rotary = staticmethod(apply_rotary)

    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config["attention_bias"]), False


class Glm(decoder.CausalLM):
    attention_class = Attention
    mlp_class = FusedMLP
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 2, "head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5,
    }  # fmt: skip


class Glm4Layer(decoder.Layer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, index, family)
        self.post_self_attn_layernorm = RMSNorm(machine, config["hidden_size"])
        self.post_mlp_layernorm = RMSNorm(machine, config["hidden_size"])

    def after_attention(self, hidden_states: Tensor) -> Tensor:
        return self.post_self_attn_layernorm(hidden_states)

    def after_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.post_mlp_layernorm(hidden_states)


class Glm4(Glm):
    layer_class = Glm4Layer
