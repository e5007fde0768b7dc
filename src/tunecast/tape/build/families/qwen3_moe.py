"""Qwen3-MoE: Qwen3 with experts (transformers/models/qwen3_moe/modeling_qwen3_moe.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder, ops
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.experts import refuse_router_loss
from tunecast.tape.build.families import qwen2_moe
from tunecast.tape.build.families.qwen import Qwen3Attention
from tunecast.tape.build.modules import Module
from tunecast.tape.build.tensor import Machine, Tensor

DEFAULTS: Config = {
    "use_sliding_window": False, "sliding_window": 4096, "num_key_value_heads": 4, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": False,
}  # fmt: skip


class SparseMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.experts = qwen2_moe.experts(machine, config)
        self.gate = qwen2_moe.router(machine, config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states_reshaped = ops.view(hidden_states, -1, hidden_dim)
        _, routing_weights, selected_experts = self.gate(hidden_states_reshaped)
        final_hidden_states = self.experts(hidden_states_reshaped, selected_experts, routing_weights)
        return ops.reshape(final_hidden_states, batch_size, sequence_length, hidden_dim)


class Layer(decoder.Layer):
    attention_class: Any = Qwen3Attention

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        if qwen2_moe.is_sparse(config, index):
            self.mlp = SparseMoe(machine, config)


class Decoder(decoder.Decoder):
    layer_class: Any = Layer

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.mask_kinds = tuple(dict.fromkeys(self.kinds))


class CausalLM(decoder.CausalLM):
    decoder_class: Any = Decoder
    defaults: ClassVar[Config] = DEFAULTS

    def __init__(self, machine: Machine, config: Config) -> None:
        refuse_router_loss(config)
        super().__init__(machine, config)

    def layer_types(self, config: Config) -> Sequence[str]:
        windowed = config["use_sliding_window"] and config["sliding_window"]
        return [SLIDING if windowed else FULL] * config["num_hidden_layers"]
