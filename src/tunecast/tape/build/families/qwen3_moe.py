"""Qwen3-MoE: Qwen3 with experts (transformers/models/qwen3_moe/modeling_qwen3_moe.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tunecast.tape.build import decoder, experts
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.families import qwen2_moe
from tunecast.tape.build.families.qwen import Qwen3Attention
from tunecast.tape.build.machine import Machine

DEFAULTS: Config = {
    "use_sliding_window": False, "sliding_window": 4096, "num_key_value_heads": 4, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": False,
}  # fmt: skip


class SparseMoe(experts.SparseMoe):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.experts = qwen2_moe.experts(machine, config)
        self.gate = qwen2_moe.router(machine, config)


class CausalLM(decoder.CausalLM):
    layer_class = qwen2_moe.Layer
    attention_class = Qwen3Attention
    moe_class = SparseMoe
    mask_kinds = ()
    defaults: ClassVar[Config] = DEFAULTS

    def layer_types(self, config: Config) -> Sequence[str]:
        windowed = config["use_sliding_window"] and config["sliding_window"]
        return [SLIDING if windowed else FULL] * config["num_hidden_layers"]
