"""Qwen 2 and 3: Llama with biases before attention, with norms of queries and keys; both also with experts, in
Qwen2-MoE beside one that sees every token (transformers/models/{qwen2,qwen3,qwen2_moe,qwen3_moe})."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import decoder, experts
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.experts import Router, experts_of
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module, RMSNorm
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


# ------------------------------------------------------------------------------------------------------------ Qwen2-MoE


def qwen_router(machine: Machine, config: Config) -> Router:
    size = config["num_experts"], config["hidden_size"], config["num_experts_per_tok"]
    return Router(machine, *size, bool(config["norm_topk_prob"]))


def is_sparse(config: Config, index: int) -> bool:
    """Some layers may keep an ordinary MLP."""
    step = config.get("decoder_sparse_step") or 1
    return index not in (config.get("mlp_only_layers") or ()) and config["num_experts"] > 0 and (index + 1) % step == 0


class Qwen2Moe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.gate = qwen_router(machine, config)
        self.experts = experts_of(machine, config, "num_experts", "moe_intermediate_size")
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


class Qwen2MoeAttention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config["qkv_bias"]), False


class QwenMoeLayer(decoder.Layer):
    """Some have experts."""

    def __init__(self, machine: Machine, config: Config, index: int, family: type[Qwen2MoeLM]) -> None:
        super().__init__(machine, config, index, family)
        if is_sparse(config, index):
            self.mlp = family.moe_class(machine, config)


class Qwen2MoeDecoder(decoder.Decoder):
    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        if not config["use_sliding_window"]:
            self.window = 0  # a mask of no width, made all the same


class Qwen2MoeLM(decoder.CausalLM):
    decoder_class: Any = Qwen2MoeDecoder
    layer_class = QwenMoeLayer
    attention_class: Any = Qwen2MoeAttention
    moe_class: Any = Qwen2Moe
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {
        "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "num_experts": 60,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "norm_topk_prob": False, "qkv_bias": True,
    }  # fmt: skip

    def layer_types(self, config: Config) -> Sequence[str]:
        if config.get("layer_types"):
            return list(config["layer_types"])
        first = config["max_window_layers"] if config["use_sliding_window"] else 0
        return [SLIDING if i % 2 == 0 and i < first else FULL for i in range(config["num_hidden_layers"])]


# ------------------------------------------------------------------------------------------------------------ Qwen3-MoE


class Qwen3Moe(experts.SparseMoe):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.experts = experts_of(machine, config, "num_experts", "moe_intermediate_size")
        self.gate = qwen_router(machine, config)


class Qwen3MoeLM(decoder.CausalLM):
    layer_class = QwenMoeLayer
    attention_class = Qwen3Attention
    moe_class = Qwen3Moe
    mask_kinds = ()
    defaults: ClassVar[Config] = {
        "use_sliding_window": False, "sliding_window": 4096, "num_key_value_heads": 4, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": False,
    }  # fmt: skip

    def layer_types(self, config: Config) -> Sequence[str]:
        windowed = config["use_sliding_window"] and config["sliding_window"]
        return [SLIDING if windowed else FULL] * config["num_hidden_layers"]
