"""Mixtral: Mistral with experts (models/mixtral/modeling_mixtral.py)."""

from __future__ import annotations

from typing import ClassVar

from tunecast.tape.build import experts
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.experts import Experts, Router, top_k
from tunecast.tape.build.families import mistral
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor

DEFAULTS: Config = {
    "num_key_value_heads": 8, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


class MixtralRouter(Router):
    """Its scores stay in fp32."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])
        router_logits = F.linear(hidden_states, self.weight)
        router_probs = F.softmax(router_logits.float())
        router_top_value, router_indices = top_k(router_probs, self.top_k)
        router_top_value = router_top_value.div_(router_top_value.sum(-1, keepdim=True))
        return router_logits, router_top_value, router_indices


class SparseMoe(experts.SparseMoe):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        count, hidden = config["num_local_experts"], config["hidden_size"]
        self.gate = MixtralRouter(machine, count, hidden, config["num_experts_per_tok"])
        inner = config["intermediate_size"]
        self.experts = Experts(machine, count, hidden, inner, config.get("hidden_act", "silu"))


class CausalLM(mistral.CausalLM):
    mlp_class = SparseMoe
    defaults: ClassVar[Config] = DEFAULTS
