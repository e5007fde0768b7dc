"""Llama but for one thing: Arcee's MLP without a gate, CWM's and Ministral's windows, Hunyuan's norms of turned queries
and keys, ERNIE 4.5's rotation in fp32 (transformers/models/{arcee,cwm,ministral,hunyuan_v1_dense,ernie4_5})."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.families.cohere import rotate_half
from tunecast.tape.build.families.olmo import OlmoRotary
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import PlainMLP, RMSNorm
from tunecast.tape.build.tensor import Tensor

# ------------------------------------------------------------------------------------------------------------- Arcee


class ArceeMLP(PlainMLP):
    up, activation, down = "up_proj", "act_fn", "down_proj"

    def __init__(self, machine: Machine, config: Config) -> None:
        size, bias = (config["hidden_size"], config["intermediate_size"]), bool(config.get("mlp_bias", False))
        super().__init__(machine, *size, config.get("hidden_act", "relu2"), bias)


class Arcee(decoder.CausalLM):
    mlp_class = ArceeMLP


# ----------------------------------------------------------------------------------------------- CWM and Ministral


class Cwm(decoder.CausalLM):
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 8192}

    def layer_types(self, config: Config) -> Sequence[str]:
        every = range(config["num_hidden_layers"])
        return config.get("layer_types") or [SLIDING if index % 4 else FULL for index in every]


class Ministral(decoder.CausalLM):
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "sliding_window": 4096}

    def layer_types(self, config: Config) -> Sequence[str]:
        kind = SLIDING if config.get("sliding_window") else FULL
        return config.get("layer_types") or [kind] * config["num_hidden_layers"]


# ----------------------------------------------------------------------------------------------------------- Hunyuan


class HunyuanAttention(decoder.SelfAttention):
    came_later = True

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.query_layernorm = RMSNorm(machine, self.head_dim)
        self.key_layernorm = RMSNorm(machine, self.head_dim)

    def qkv(self, hidden_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor, Tensor]:
        query_states, key_states, value_states = super().qkv(hidden_states, position_embeddings)
        query_states = self.query_layernorm(query_states)
        key_states = self.key_layernorm(key_states)
        return query_states, key_states, value_states


class Hunyuan(decoder.CausalLM):
    attention_class = HunyuanAttention


# --------------------------------------------------------------------------------------------------------- ERNIE 4.5


class ErnieAttention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        bias = bool(config.get("use_bias", False))
        return bias, bias

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = (twice(table.unsqueeze(1)) for table in position_embeddings)
        q_embed = rotate_in_float32(query_states, cos, sin)
        k_embed = rotate_in_float32(key_states, cos, sin)
        return q_embed.to(query_states.dtype), k_embed.to(query_states.dtype)


def twice(table: Tensor) -> Tensor:
    return table[..., : table.shape[-1] // 2].repeat_interleave(2, 3)


def rotate_in_float32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x.float() * cos + rotate_half(x).float() * sin


class Ernie(decoder.CausalLM):
    attention_class = ErnieAttention
    rotary_class = OlmoRotary
    defaults: ClassVar[Config] = {"tie_word_embeddings": True}

    def complete(self, config: Config) -> dict[str, Any]:
        whole = super().complete(config)
        return {**whole, "mlp_bias": whole.get("use_bias", False), "attention_dropout": 0.0}
