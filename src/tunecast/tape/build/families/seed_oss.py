"""Seed-OSS: Llama with biases before attention and dropout behind every block
(transformers/models/seed_oss/modeling_seed_oss.py)."""

from __future__ import annotations

from typing import ClassVar

from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor


class Attention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config["attention_bias"]), bool(config.get("attention_out_bias", False))


class MLP(decoder.GatedMLP):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.residual_dropout = config["residual_dropout"]

    def forward(self, x: Tensor) -> Tensor:
        down_proj = super().forward(x)
        down_proj = F.dropout(down_proj, self.residual_dropout)
        return down_proj


class CausalLM(decoder.CausalLM):
    attention_class = Attention
    mlp_class = MLP
    defaults: ClassVar[Config] = {
        "head_dim": 128, "num_key_value_heads": 8, "attention_bias": True, "attention_dropout": 0.1,
        "residual_dropout": 0.1,
    }  # fmt: skip
