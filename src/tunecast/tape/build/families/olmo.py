"""OLMo: norms without weights. OLMo 2 and 3: norms after a block, not before it, and of whole queries and keys; OLMo 3
adds windows (transformers/models/{olmo,olmo2,olmo3}/modeling_*.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import rotate_both
from tunecast.tape.build.decoder import FULL, SLIDING, Config, GatedMLP
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module, RMSNorm
from tunecast.tape.build.tensor import Tensor


class OlmoNorm(RMSNorm):
    """The weight is multiplied in before the result goes back to its dtype."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.float()
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * F.rsqrt(variance + self.variance_epsilon)
        return (self.weight * hidden_states).to(input_dtype)


class OlmoRotary(decoder.RotaryEmbedding):
    """In fp32 to the end."""

    def result_dtype(self, x: Tensor) -> Any:
        return FLOAT32


def apply_in_float32(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q_embed, k_embed = rotate_both(q, k, cos, sin)
    return q_embed.to(q.dtype), k_embed.to(k.dtype)


class PlainNorm(Module):
    """No weight."""

    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)

    def forward(self, hidden_states: Tensor) -> Tensor:
        orig_dtype = hidden_states.dtype
        return F.layer_norm(hidden_states.float(), None, None).to(orig_dtype)


class OlmoAttention(decoder.SelfAttention):
    projects_first = True
    rotary = staticmethod(apply_in_float32)

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        if config.get("clip_qkv") is not None:
            raise Unsupported.at("model", "the closed form does not know OLMo's clip_qkv")


class Olmo(decoder.CausalLM):
    attention_class = OlmoAttention
    norm_class = PlainNorm
    rotary_class = OlmoRotary


def windows_but_every(every: int, config: Config) -> Sequence[str]:
    """Of so many layers the last attends to everything, unless config.json says otherwise."""
    kinds = [SLIDING if (i + 1) % every else FULL for i in range(config["num_hidden_layers"])]
    return config.get("layer_types") or kinds


class HeadNormedAttention(decoder.SelfAttention):
    """Norms over each head's queries and keys, before they turn."""

    norm_class: Any = RMSNorm

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.q_norm = self.norm_class(machine, self.head_dim)
        self.k_norm = self.norm_class(machine, self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query_states, key_states, value_states = super().project(hidden_states)
        query_states = self.q_norm(query_states)
        key_states = self.k_norm(key_states)
        return query_states, key_states, value_states


class NormedAttention(decoder.SelfAttention):
    """Norms over all queries and all keys."""

    norm_class: Any = OlmoNorm

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.q_norm = self.norm_class(machine, self.q_proj.outputs)
        self.k_norm = self.norm_class(machine, self.k_proj.outputs)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_norm(self.q_proj(hidden_states))
        key_states = self.k_norm(self.k_proj(hidden_states))
        value_states = self.v_proj(hidden_states)
        query_states = query_states.view(*shape).transpose(1, 2)
        key_states = key_states.view(*shape).transpose(1, 2)
        value_states = value_states.view(*shape).transpose(1, 2)
        return query_states, key_states, value_states


class Olmo2Attention(NormedAttention):
    rotary = staticmethod(apply_in_float32)


class PostNormLayer(decoder.Layer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        Module.__init__(self, machine)  # its norms are others
        self.self_attn = family.attention_class(machine, config, index)
        self.mlp = GatedMLP(machine, config)
        self.post_attention_layernorm = family.norm_class(machine, config["hidden_size"])
        self.post_feedforward_layernorm = family.norm_class(machine, config["hidden_size"])

    def before_attention(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    def after_attention(self, hidden_states: Tensor) -> Tensor:
        return self.post_attention_layernorm(hidden_states)

    def before_mlp(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    def after_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.post_feedforward_layernorm(hidden_states)


class Olmo2(decoder.CausalLM):
    layer_class = PostNormLayer
    attention_class = Olmo2Attention
    norm_class = OlmoNorm
    rotary_class: Any = OlmoRotary


class Olmo3Rotary(decoder.RotaryByKind):
    rotary_class: Any = OlmoRotary


class Olmo3(Olmo2):
    rotary_class = Olmo3Rotary
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {"sliding_window": 4096}

    def layer_types(self, config: Config) -> Sequence[str]:
        return windows_but_every(4, config)
