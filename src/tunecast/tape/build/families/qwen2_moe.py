"""Qwen2-MoE: Qwen2 with experts, and one that sees every token
(transformers/models/qwen2_moe/modeling_qwen2_moe.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.experts import Experts, Router
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.tensor import Tensor

DEFAULTS: Config = {
    "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "num_experts": 60,
    "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
    "norm_topk_prob": False, "qkv_bias": True,
}  # fmt: skip


def router(machine: Machine, config: Config) -> Router:
    size = config["num_experts"], config["hidden_size"], config["num_experts_per_tok"]
    return Router(machine, *size, bool(config["norm_topk_prob"]))


def experts(machine: Machine, config: Config) -> Experts:
    size = config["num_experts"], config["hidden_size"], config["moe_intermediate_size"]
    return Experts(machine, *size, config.get("hidden_act", "silu"))


def is_sparse(config: Config, index: int) -> bool:
    """Some layers may keep an ordinary MLP."""
    step = config.get("decoder_sparse_step") or 1
    return index not in (config.get("mlp_only_layers") or ()) and config["num_experts"] > 0 and (index + 1) % step == 0


class SparseMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.gate = router(machine, config)
        self.experts = experts(machine, config)
        inner = config["shared_expert_intermediate_size"]
        self.shared_expert = decoder.GatedMLP(machine, {**config, "intermediate_size": inner})
        self.shared_expert_gate = Linear(machine, config["hidden_size"], 1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states_reshaped = hidden_states.view(-1, hidden_dim)
        shared_expert_output = self.shared_expert(hidden_states_reshaped)
        _, routing_weights, selected_experts = self.gate(hidden_states_reshaped)
        expert_output = self.experts(hidden_states_reshaped, selected_experts, routing_weights)
        gate = self.shared_expert_gate(hidden_states_reshaped).sigmoid()
        shared_expert_output = gate * shared_expert_output
        del gate
        expert_output = expert_output + shared_expert_output
        expert_output = expert_output.reshape(batch_size, sequence_length, hidden_dim)
        return expert_output


class SelfAttention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config["qkv_bias"]), False


class Layer(decoder.Layer):
    """Some have experts."""

    def __init__(self, machine: Machine, config: Config, index: int, family: type[CausalLM]) -> None:
        super().__init__(machine, config, index, family)
        if is_sparse(config, index):
            self.mlp = family.moe_class(machine, config)


class Decoder(decoder.Decoder):
    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        if not config["use_sliding_window"]:
            self.window = 0  # a mask of no width, made all the same


class CausalLM(decoder.CausalLM):
    decoder_class: Any = Decoder
    layer_class = Layer
    attention_class: Any = SelfAttention
    moe_class: Any = SparseMoe
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = DEFAULTS

    def layer_types(self, config: Config) -> Sequence[str]:
        if config.get("layer_types"):
            return list(config["layer_types"])
        first = config["max_window_layers"] if config["use_sliding_window"] else 0
        return [SLIDING if i % 2 == 0 and i < first else FULL for i in range(config["num_hidden_layers"])]
