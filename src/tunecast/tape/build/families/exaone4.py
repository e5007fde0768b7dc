"""EXAONE 4 (transformers/models/exaone4): norms after a block, of each query and key before it turns, and three layers
with a window to one that attends to everything and turns nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import attention, decoder, ops
from tunecast.tape.build.decoder import FULL, SLIDING, Config, GatedMLP
from tunecast.tape.build.families.olmo import Olmo2Layer
from tunecast.tape.build.modules import Module, RMSNorm
from tunecast.tape.build.tensor import Machine, Tensor


class Attention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.turns = config.get("sliding_window") is None or self.window is not None
        self.q_norm = RMSNorm(machine, self.head_dim)
        self.k_norm = RMSNorm(machine, self.head_dim)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        query_states, key_states, value_states = self.projected(hidden_states)
        query_states = self.q_norm(query_states)
        key_states = self.k_norm(key_states)
        if self.turns:
            query_states, key_states = self.placed(query_states, key_states, position_embeddings)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids, window=self.window,
        )  # fmt: skip
        attn_output = ops.contiguous(ops.reshape(attn_output, batch, length, -1))
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


class Layer(Olmo2Layer):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        Module.__init__(self, machine)
        self.self_attn: Any = Attention(machine, config, index)
        self.mlp = GatedMLP(machine, config)
        self.post_attention_layernorm: Any = RMSNorm(machine, config["hidden_size"])
        self.post_feedforward_layernorm: Any = RMSNorm(machine, config["hidden_size"])


class Decoder(decoder.Decoder):
    layer_class: Any = Layer


class CausalLM(decoder.CausalLM):
    decoder_class: Any = Decoder
    defaults: ClassVar[Config] = {"num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4}

    def layer_types(self, config: Config) -> Sequence[str]:
        if config.get("layer_types"):
            return list(config["layer_types"])
        pattern, layers = config["sliding_window_pattern"], config["num_hidden_layers"]
        if not config.get("sliding_window") or not pattern:
            return [FULL] * layers
        every = len(pattern) if isinstance(pattern, str) else pattern
        return [SLIDING if (index + 1) % every else FULL for index in range(layers)]
