"""Qwen 2 and 3: Llama with biases before attention, with norms of queries and keys
(transformers/models/qwen2/modeling_qwen2.py, models/qwen3/modeling_qwen3.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder, ops
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.modules import RMSNorm
from tunecast.tape.build.tensor import Machine, Tensor

WINDOWED: Config = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}


def windowed_layers(config: Config) -> Sequence[str]:
    """The first layers attend to everything, later ones to a window, where that is switched on."""
    if config.get("layer_types"):
        return list(config["layer_types"])
    first = config["max_window_layers"] if config["use_sliding_window"] and config["sliding_window"] else None
    return [FULL if first is None or i < first else SLIDING for i in range(config["num_hidden_layers"])]


class Qwen2Attention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return True, False


class Qwen2Layer(decoder.Layer):
    attention_class: Any = Qwen2Attention


class Qwen2Decoder(decoder.Decoder):
    layer_class: Any = Qwen2Layer


class Qwen2(decoder.CausalLM):
    decoder_class: Any = Qwen2Decoder
    defaults: ClassVar[Config] = WINDOWED

    def layer_types(self, config: Config) -> Sequence[str]:
        return windowed_layers(config)


class Qwen3Attention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.q_norm = RMSNorm(machine, self.head_dim)
        self.k_norm = RMSNorm(machine, self.head_dim)

    def projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = ops.transpose(self.q_norm(ops.view(self.q_proj(hidden_states), *shape)), 1, 2)
        key_states = ops.transpose(self.k_norm(ops.view(self.k_proj(hidden_states), *shape)), 1, 2)
        value_states = ops.transpose(ops.view(self.v_proj(hidden_states), *shape), 1, 2)
        return query_states, key_states, value_states


class Qwen3Layer(decoder.Layer):
    attention_class: Any = Qwen3Attention


class Qwen3Decoder(decoder.Decoder):
    layer_class: Any = Qwen3Layer


class Qwen3(decoder.CausalLM):
    decoder_class: Any = Qwen3Decoder
    defaults: ClassVar[Config] = {**WINDOWED, "head_dim": 128}

    def layer_types(self, config: Config) -> Sequence[str]:
        return windowed_layers(config)
