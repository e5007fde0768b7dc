"""OLMoE: norms over all queries and all keys, experts in every layer (transformers/models/olmoe/modeling_olmoe.py)."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import decoder, experts
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.experts import Experts
from tunecast.tape.build.families import qwen2_moe
from tunecast.tape.build.families.olmo import NormedAttention
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import RMSNorm

DEFAULTS: Config = {"num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False}


class SparseMoe(experts.SparseMoe):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.gate = qwen2_moe.router(machine, config)
        size = config["num_experts"], config["hidden_size"], config["intermediate_size"]
        self.experts = Experts(machine, *size, config.get("hidden_act", "silu"))


class SelfAttention(NormedAttention):
    norm_class: Any = RMSNorm


class CausalLM(decoder.CausalLM):
    attention_class = SelfAttention
    mlp_class = SparseMoe
    defaults: ClassVar[Config] = DEFAULTS

    def __init__(self, machine: Machine, config: Config) -> None:
        if config.get("clip_qkv") is not None:
            raise Unsupported("model: the closed form does not know clip_qkv of config.json")
        super().__init__(machine, config)
