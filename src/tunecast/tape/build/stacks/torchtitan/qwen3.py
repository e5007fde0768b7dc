"""torchtitan's Qwen 3 on paper, dense and with experts (torchtitan/models/qwen3/model/model.py of 0.2): queries and
keys are normed head by head, halves are pairs, and positions turn in the layer's dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.tape.build.attention import rotate_half
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer
from tunecast.tape.build.stacks.torchtitan.experts import MoE, Routing
from tunecast.tape.build.stacks.torchtitan.model import Attention, RMSNorm, Transformer, TransformerBlock
from tunecast.tape.build.stacks.torchtitan.releases import TitanRelease
from tunecast.tape.build.tensor import Tensor


class Qwen3Attention(Attention):
    def __init__(self, machine: Machine, config: Mapping[str, Any], release: TitanRelease) -> None:
        super().__init__(machine, config, release)
        linears, self.children = self.children, {}  # which come after the norms there, and so in FSDP's units
        self.q_norm = RMSNorm(machine, self.head_dim, release)
        self.k_norm = RMSNorm(machine, self.head_dim, release)
        self.children |= linears

    def with_positions(self, xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
        seqlen, head_dim = xq.shape[1], xq.shape[-1]
        rope_cache = freqs_cis[:seqlen].view(1, seqlen, 1, head_dim * 2)
        cos = rope_cache[..., :head_dim].to(xq.dtype)
        sin = rope_cache[..., head_dim : 2 * head_dim].to(xq.dtype)
        xq_out = xq * cos + rotate_half(xq) * sin
        xk_out = xk * cos + rotate_half(xk) * sin
        return xq_out, xk_out


class Qwen3Block(TransformerBlock):
    attention_type = Qwen3Attention

    def block(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), freqs_cis)
        x = x + self.feed_forward(self.ffn_norm(x))
        return x


class Qwen3MoeBlock(Qwen3Block):
    def make_feed_forward(self, config: Mapping[str, Any]) -> None:
        dim, count = config["hidden_size"], config["num_experts"]
        routing = Routing(count, config["num_experts_per_tok"], config["moe_intermediate_size"])
        self.moe = MoE(self.machine, dim, routing)
        self.routers = frozenset([(dim, count)])

    def block(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), freqs_cis)
        x = x + self.moe(self.ffn_norm(x))
        return x


class Qwen3Model(Transformer):
    block_type = Qwen3Block

    def table(self, positions: int, head_dim: int) -> Buffer:
        return self.buffer(positions, head_dim * 2)


class Qwen3MoeModel(Qwen3Model):
    block_type = Qwen3MoeBlock
