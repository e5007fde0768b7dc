"""torchtitan's Llama 4 on paper (torchtitan/models/llama4/model/model.py of 0.2.2): Llama 3's attention, and experts in
every layer or in every other one, which get their tokens already weighed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.tape.build.machine import Machine
from tunecast.tape.build.stacks.torchtitan.experts import MoE, Routing
from tunecast.tape.build.stacks.torchtitan.model import FeedForward, Transformer, TransformerBlock
from tunecast.tape.build.stacks.torchtitan.releases import TitanRelease
from tunecast.tape.build.tensor import Tensor


class Llama4Block(TransformerBlock):
    def __init__(self, machine: Machine, config: Mapping[str, Any], release: TitanRelease) -> None:
        super().__init__(machine, config, release)
        self.saved |= {"all_to_all"}

    def make_feed_forward(self, config: Mapping[str, Any]) -> None:
        dim, count, inner = config["hidden_size"], config["num_local_experts"], config["intermediate_size"]
        routing = Routing(
            count,
            config["num_experts_per_tok"],
            inner,
            shared=FeedForward(self.machine, dim, inner),
            is_sigmoid=True,
            route_norm=False,
            scores_first=True,
        )
        self.moe = MoE(self.machine, dim, routing)
        self.routers = frozenset([(dim, count)])

    def block(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        out = h + self.moe(self.ffn_norm(h))
        return out


class DenseLlama4Block(TransformerBlock):
    def make_feed_forward(self, config: Mapping[str, Any]) -> None:
        self.feed_forward = FeedForward(self.machine, config["hidden_size"], config["intermediate_size_mlp"])


class Llama4Model(Transformer):
    def block_of(self, number: int, config: Mapping[str, Any]) -> type[TransformerBlock]:
        return DenseLlama4Block if (number + 1) % config["interleave_moe_layer_step"] else Llama4Block
