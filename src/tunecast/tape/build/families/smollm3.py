"""SmolLM3: Llama where every fourth layer has no positions (transformers/models/smollm3/modeling_smollm3.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor


def rotates(config: Config, index: int) -> bool:
    listed = config.get("no_rope_layers")
    return bool(listed[index] if listed is not None else (index + 1) % config["no_rope_layer_interval"])


class Attention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.rotates = rotates(config, index)

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        if not self.rotates:
            return query_states, key_states
        return super().apply_rotary(query_states, key_states, position_embeddings)


class CausalLM(decoder.CausalLM):
    attention_class = Attention
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 4, "no_rope_layer_interval": 4, "use_sliding_window": False, "tie_word_embeddings": True,
    }  # fmt: skip

    def layer_types(self, config: Config) -> Sequence[str]:
        windowed = bool(config["use_sliding_window"] and config.get("sliding_window"))
        count = config["num_hidden_layers"]
        kinds = [SLIDING if windowed and not rotates(config, i) else FULL for i in range(count)]
        return config.get("layer_types") or kinds
