"""EXAONE 4 (transformers/models/exaone4): norms after a block, of each query and key before it turns, and three layers
with a window to one that attends to everything and turns nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.families.olmo import PostNormLayer
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import RMSNorm
from tunecast.tape.build.tensor import Tensor


class Attention(decoder.SelfAttention):
    came_later = True

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.turns = config.get("sliding_window") is None or self.window is not None
        self.q_norm = RMSNorm(machine, self.head_dim)
        self.k_norm = RMSNorm(machine, self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query_states, key_states, value_states = super().project(hidden_states)
        query_states = self.q_norm(query_states)
        key_states = self.k_norm(key_states)
        return query_states, key_states, value_states

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        if not self.turns:
            return query_states, key_states
        return super().apply_rotary(query_states, key_states, position_embeddings)


class CausalLM(decoder.CausalLM):
    layer_class = PostNormLayer
    attention_class = Attention
    defaults: ClassVar[Config] = {"num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4}

    def layer_types(self, config: Config) -> Sequence[str]:
        if config.get("layer_types"):
            return list(config["layer_types"])
        pattern, layers = config["sliding_window_pattern"], config["num_hidden_layers"]
        if not config.get("sliding_window") or not pattern:
            return [FULL] * layers
        every = len(pattern) if isinstance(pattern, str) else pattern
        return [SLIDING if (index + 1) % every else FULL for index in range(layers)]
