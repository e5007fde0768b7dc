"""torchtitan's DeepSeek V3 on paper (torchtitan/models/deepseek_v3/model/model.py of 0.2.2): keys and values come from
a narrow layer, a part of each head has positions, and layers but the first have experts, some of them for every token.

Ignored  the update of the router's bias before an optimizer step, a few numbers an expert
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear
from tunecast.tape.build.stacks.torchtitan.experts import MoE, Routing
from tunecast.tape.build.stacks.torchtitan.model import (
    Attention,
    FeedForward,
    RMSNorm,
    Transformer,
    TransformerBlock,
    complex_mul,
    view_as_complex,
    view_as_real,
)
from tunecast.tape.build.stacks.torchtitan.releases import TitanRelease
from tunecast.tape.build.tensor import Tensor


def apply_rotary_emb(x: Tensor, freqs_cis: Tensor) -> Tensor:
    dtype, shape = x.dtype, x.shape
    x = view_as_complex(x.float().view(*shape[:-1], -1, 2))
    freqs_cis = freqs_cis[: shape[1]].view(1, shape[1], 1, x.shape[-1])
    y = view_as_real(complex_mul(x, freqs_cis)).reshape(*shape)
    return y.to(dtype)


class LatentAttention(Attention):
    def make_linears(self, config: Mapping[str, Any]) -> None:
        machine, dim, release = self.machine, config["hidden_size"], self.release
        self.nope, self.rope, self.value = (config[n] for n in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        self.latent, rank = config["kv_lora_rank"], config.get("q_lora_rank") or 0
        outputs = self.n_heads * (self.nope + self.rope)
        self.wq_a: Any = None
        if rank:
            self.wq_a = Linear(machine, dim, rank)
            self.q_norm = RMSNorm(machine, rank, release)
            self.wq_b = Linear(machine, rank, outputs)
        else:
            self.wq = Linear(machine, dim, outputs)
        self.wkv_a = Linear(machine, dim, self.latent + self.rope)
        self.kv_norm = RMSNorm(machine, self.latent, release)
        self.wkv_b = Linear(machine, self.latent, self.n_heads * (self.nope + self.value))
        self.wo = Linear(machine, self.n_heads * self.value, dim)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        bsz, seqlen = x.shape[:2]
        if self.wq_a is None:
            q = self.wq(x)
        else:
            q = self.wq_a(x)
            q = self.wq_b(self.q_norm(q))
        q = q.view(bsz, seqlen, -1, self.nope + self.rope)
        q_nope, q_pe = q.split([self.nope, self.rope], -1)
        q_pe = apply_rotary_emb(q_pe, freqs_cis)
        q = F.cat([q_nope, q_pe], -1)
        kv = self.wkv_a(x)
        kv, k_pe = kv.split([self.latent, self.rope], -1)
        k_pe = apply_rotary_emb(k_pe.unsqueeze(2), freqs_cis)
        kv = self.wkv_b(self.kv_norm(kv))
        kv = kv.view(bsz, seqlen, -1, self.nope + self.value)
        k_nope, v = kv.split([self.nope, self.value], -1)
        k = F.cat([k_nope, k_pe.expand(bsz, seqlen, self.n_heads, self.rope)], -1)
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        output = self.inner_attention(q, k, v, False)
        output = output.transpose(1, 2).contiguous()
        output = output.view(bsz, seqlen, -1)
        return self.wo(output)


class DeepSeekBlock(TransformerBlock):
    attention_type = LatentAttention
    is_dense = False

    def __init__(self, machine: Machine, config: Mapping[str, Any], release: TitanRelease) -> None:
        super().__init__(machine, config, release)
        self.saved |= {"all_to_all"}
        kept = "feed_forward" if self.is_dense else "moe"
        self.children[kept] = self.children.pop(kept)  # which comes after the norms there

    def make_feed_forward(self, config: Mapping[str, Any]) -> None:
        dim, count, inner = config["hidden_size"], config["n_routed_experts"], config["moe_intermediate_size"]
        shared = config.get("n_shared_experts") or 0
        routing = Routing(
            count,
            config["num_experts_per_tok"],
            inner,
            shared=FeedForward(self.machine, dim, inner * shared) if shared else None,
            is_sigmoid=config.get("scoring_func") == "sigmoid",
            route_norm=bool(config.get("norm_topk_prob")),
            groups=config.get("n_group") or 1,
            limited_groups=config.get("topk_group") or 1,
        )
        self.moe = MoE(self.machine, dim, routing)
        self.routers = frozenset([(dim, count)])

    def block(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), freqs_cis)
        x = x + (self.feed_forward if self.is_dense else self.moe)(self.ffn_norm(x))
        return x


class DenseDeepSeekBlock(DeepSeekBlock):
    is_dense = True

    def make_feed_forward(self, config: Mapping[str, Any]) -> None:
        TransformerBlock.make_feed_forward(self, config)


class DeepSeekModel(Transformer):
    def block_of(self, number: int, config: Mapping[str, Any]) -> type[TransformerBlock]:
        return DenseDeepSeekBlock if number < (config.get("first_k_dense_replace") or 0) else DeepSeekBlock

    def head_width(self, config: Mapping[str, Any]) -> int:
        return int(config["qk_rope_head_dim"])
