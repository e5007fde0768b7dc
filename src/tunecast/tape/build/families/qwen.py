"""Qwen 2 and 3: Llama with biases before attention, with norms of queries and keys
(transformers/models/qwen2/modeling_qwen2.py, models/qwen3/modeling_qwen3.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import RMSNorm
from tunecast.tape.build.tensor import Tensor

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


class Qwen2(decoder.CausalLM):
    attention_class: Any = Qwen2Attention
    defaults: ClassVar[Config] = WINDOWED

    def layer_types(self, config: Config) -> Sequence[str]:
        return windowed_layers(config)


class Qwen3Attention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.q_norm = RMSNorm(machine, self.head_dim)
        self.k_norm = RMSNorm(machine, self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_norm(self.q_proj(hidden_states).view(*shape)).transpose(1, 2)
        key_states = self.k_norm(self.k_proj(hidden_states).view(*shape)).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(*shape).transpose(1, 2)
        return query_states, key_states, value_states


class Qwen3(Qwen2):
    attention_class: Any = Qwen3Attention
    defaults: ClassVar[Config] = {**WINDOWED, "head_dim": 128}
