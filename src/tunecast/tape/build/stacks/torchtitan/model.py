"""torchtitan's Llama 3 on paper (torchtitan/models/llama3/model/model.py of 0.1 to 0.2).

Local names are those of the real file: what a name holds lives as long as it does there. Positions turn as complex
numbers, in fp32; neighbours are pairs.

torchtitan's Qwen 3 on paper, dense and with experts (torchtitan/models/qwen3/model/model.py of 0.2): queries and
keys are normed head by head, halves are pairs, and positions turn in the layer's dtype.

torchtitan's DeepSeek V3 on paper (torchtitan/models/deepseek_v3/model/model.py of 0.2.2): keys and values come from
a narrow layer, a part of each head has positions, and layers but the first have experts, some of them for every token.

Ignored  the update of the router's bias before an optimizer step, a few numbers an expert
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.tape.build import attention as kernels
from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import rotate_half
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start, wants
from tunecast.tape.build.compiled import Region
from tunecast.tape.build.dtypes import FLOAT32, Dtype, Shape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer, Embedding, Linear, Module, ModuleList
from tunecast.tape.build.recompute import recomputing
from tunecast.tape.build.sharding.sequence import ring_attention
from tunecast.tape.build.stacks.torchtitan.experts import MoE, Routing
from tunecast.tape.build.stacks.torchtitan.releases import TitanRelease
from tunecast.tape.build.stacks.torchtitan.selective import SAVED, checkpoint_selectively
from tunecast.tape.build.stacks.torchtune.modules import fused_rms_norm
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels.backend import ALL, choose
from tunecast.tape.kernels.backend import Attention as AttentionCall

# -------------------------------------------------------------------------------------------------------------- Llama 3


COMPLEX64 = Dtype("complex64", 8, False)


# ------------------------------------------------------------------------------------------- complex numbers


def as_dtype(x: Tensor, shape: Shape, dtype: Dtype) -> Tensor:
    """The same contiguous memory read as other numbers."""
    return Tensor(x.machine, x.storage, shape, dtype, None, x.offset, True)


def view_as_complex(x: Tensor) -> Tensor:
    """[..., 2] of fp32."""

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (view_as_real(gradients[0].contiguous()),)

    return record(as_dtype(x, x.shape[:-1], COMPLEX64), (x,), back)


def view_as_real(x: Tensor) -> Tensor:
    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (view_as_complex(gradients[0].contiguous()),)

    return record(as_dtype(x, (*x.shape, 2), FLOAT32), (x,), back)


def complex_mul(x: Tensor, angles: Tensor) -> Tensor:
    """x * angles; the gradient is turned back by a conjugate, of which a copy is made."""
    machine, shape = x.machine, angles.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        conjugate = machine.run("conj_physical", (node.take(0),), shape, COMPLEX64)
        return (complex_product(gradients[0], conjugate),)

    return finish(start(machine, (x,), back, (angles,)), complex_product(x, angles))


def complex_product(a: Tensor, b: Tensor) -> Tensor:
    """Inductor writes no kernels for complex numbers: a library's call in compiled code too."""
    if a.machine.graph is not None:
        made: Tensor = a.machine.graph.call("mul", (a, b), ((a.shape, a.dtype),), 0, (a, b), None)[0]
        return made
    return a.machine.run("mul", (a, b), a.shape, a.dtype)


# ------------------------------------------------------------------------------------------------ modules


class RMSNorm(Module):
    """torch.nn.RMSNorm: one kernel, or before torch 2.9 the formula taken apart in C++ (layer_norm.cpp)."""

    def __init__(self, machine: Machine, width: int, release: TitanRelease) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width)
        self.kind = "own" if release.own_norm else "fused" if release.fused_norm else "composite"

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "own":  # torchtitan/models/norms.py
            output = self._norm(x.float()).to(x.dtype)
            return output * self.weight
        if self.kind == "fused" and self.machine.autocast is not None:  # which has it among what runs in fp32
            x = x.float()
        if self.kind == "fused" and x.dtype == self.weight.dtype:
            return fused_rms_norm(x, self.weight)
        upcasted_input = x.float()
        squares = upcasted_input.pow(2)  # C++ keeps temporaries until the whole expression is done
        means = squares.mean(-1, keepdim=True)
        inverse = F.rsqrt(means.add_(1e-5))
        del squares, means
        result = upcasted_input * inverse
        return (result * self.weight).to(x.dtype)

    def _norm(self, x: Tensor) -> Tensor:
        return x * F.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    xq_ = view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    seqlen, pairs = xq_.shape[1], xq_.shape[-1]
    freqs_cis = freqs_cis[:seqlen].view(1, seqlen, 1, pairs)
    xq_out = view_as_real(complex_mul(xq_, freqs_cis)).reshape(*xq.shape)
    xk_out = view_as_real(complex_mul(xk_, freqs_cis)).reshape(*xk.shape)
    return xq_out.to(xq.dtype), xk_out.to(xk.dtype)


def repeat_kv(x: Tensor, n_rep: int) -> Tensor:
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    expanded = x.unsqueeze(3).expand(bs, slen, n_kv_heads, n_rep, head_dim)
    return expanded.reshape(bs, slen, n_kv_heads * n_rep, head_dim)


class Attention(Module):
    context = 1
    """Ranks a sequence is split over."""
    q_norm: Any = None
    k_norm: Any = None

    def __init__(self, machine: Machine, config: Mapping[str, Any], release: TitanRelease) -> None:
        super().__init__(machine)
        self.release = release
        self.n_heads = config["num_attention_heads"]
        self.n_kv_heads = config.get("num_key_value_heads") or self.n_heads
        self.n_rep = self.n_heads // self.n_kv_heads
        dim = config["hidden_size"]
        self.head_dim = config.get("head_dim") or dim // self.n_heads
        self.make_linears(config)

    def make_linears(self, config: Mapping[str, Any]) -> None:
        machine, dim = self.machine, config["hidden_size"]
        self.wq = Linear(machine, dim, self.n_heads * self.head_dim)
        self.wk = Linear(machine, dim, self.n_kv_heads * self.head_dim)
        self.wv = Linear(machine, dim, self.n_kv_heads * self.head_dim)
        self.wo = Linear(machine, self.n_heads * self.head_dim, dim)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        bs, seqlen = xq.shape[:2]
        xq = xq.view(bs, seqlen, -1, self.head_dim)
        xk = xk.view(bs, seqlen, -1, self.head_dim)
        xv = xv.view(bs, seqlen, -1, self.head_dim)
        if self.q_norm is not None:
            xq = self.q_norm(xq)
            xk = self.k_norm(xk)
        xq, xk = self.with_positions(xq, xk, freqs_cis)
        gqa = not self.release.repeats_heads and self.n_rep > 1
        keys = xk if gqa else repeat_kv(xk, self.n_rep)
        values = xv if gqa else repeat_kv(xv, self.n_rep)
        xq = xq.transpose(1, 2)
        xk = keys.transpose(1, 2)
        xv = values.transpose(1, 2)
        output = self.inner_attention(xq, xk, xv, gqa)
        output = output.transpose(1, 2).contiguous()
        output = output.view(bs, seqlen, -1)
        return self.wo(output)

    def with_positions(self, xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rotary_emb(xq, xk, freqs_cis)

    def inner_attention(self, q: Tensor, k: Tensor, v: Tensor, gqa: bool) -> Tensor:
        """`sdpa_kernel(backends, set_priority=True)`."""
        machine = self.machine
        if self.context > 1:
            return ring_attention(q, k, v, self.context)
        k = F.cast_for_product(k)
        q = F.cast_for_product(q)
        keeps = wants(machine, q, k, v)
        call = AttentionCall(q, k, v, None, 0.0, True, None, gqa, keeps)
        for name in self.release.attention:
            if choose(call, machine.card, frozenset((name,)) & ALL) == name or name == "cudnn":
                run = {"cudnn": kernels.cudnn, "flash": kernels.flash, "efficient": kernels.efficient}[name]
                return run(q, k, v, None, 0.0, True, keeps)
        return kernels.scaled_dot_product(q, k, v, None, 0.0, True, gqa)


class FeedForward(Module):
    def __init__(self, machine: Machine, dim: int, hidden_dim: int) -> None:
        super().__init__(machine)
        self.w1 = Linear(machine, dim, hidden_dim)
        self.w2 = Linear(machine, hidden_dim, dim)
        self.w3 = Linear(machine, dim, hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(Module):
    recompute: str | None = None
    """None, "all" or "selective"."""
    region: Region | None = None
    attention_type = Attention
    routers: frozenset[Shape] = frozenset()
    """Sizes of the weights of a router, [in, out]."""

    def __init__(self, machine: Machine, config: Mapping[str, Any], release: TitanRelease) -> None:
        super().__init__(machine)
        dim = config["hidden_size"]
        self.attention = self.attention_type(machine, config, release)
        self.make_feed_forward(config)
        self.attention_norm = RMSNorm(machine, dim, release)
        self.ffn_norm = RMSNorm(machine, dim, release)
        self.saved = SAVED | release.saves
        self.stops_early = release.stops_early

    def make_feed_forward(self, config: Mapping[str, Any]) -> None:
        self.feed_forward = FeedForward(self.machine, config["hidden_size"], config["intermediate_size"])

    def compile(self, owns_weights: bool) -> None:
        self.region = Region(self.machine, self.wrapped, owns_weights)

    def forward(self, x: Tensor, *given: Any) -> Tensor:
        return (self.region or self.wrapped)(x, *given)

    def wrapped(self, x: Tensor, *given: Any) -> Tensor:
        """`checkpoint_wrapper`."""
        machine = self.machine
        if self.recompute == "selective":
            return checkpoint_selectively(machine, self.block, self.saved, self.routers, self.stops_early, x, *given)
        if self.recompute == "all":
            with recomputing(machine, self.block, (x, *given), self.stops_early):
                return self.block(x, *given)
        return self.block(x, *given)

    def block(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        out = h + self.feed_forward(self.ffn_norm(h))
        return out


class Transformer(Module):
    block_type = TransformerBlock

    def __init__(
        self, machine: Machine, config: Mapping[str, Any], release: TitanRelease, positions: int, last: bool = True,
        first: bool = True,
    ) -> None:  # fmt: skip
        """Without the `last` stage of a pipeline: no norm and no head; without the `first`: no embedding."""
        super().__init__(machine)
        self.first, self.last, self.width = first, last, config["hidden_size"]
        dim = config["hidden_size"]
        if first:
            self.tok_embeddings = Embedding(machine, config["vocab_size"], dim)
        blocks = [self.block_of(number, config) for number in range(config["num_hidden_layers"])]
        self.layer_list = ModuleList(machine, [block(machine, config, release) for block in blocks])
        if last:
            self.norm = RMSNorm(machine, dim, release)
            self.output = Linear(machine, dim, config["vocab_size"])
        self.make_tables(positions, self.head_width(config))

    def make_tables(self, positions: int, head_dim: int) -> None:
        self.freqs_cis = self.table(positions, head_dim)

    def block_of(self, number: int, config: Mapping[str, Any]) -> type[TransformerBlock]:
        return self.block_type

    def head_width(self, config: Mapping[str, Any]) -> int:
        """Of the part of a head that has positions."""
        return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])

    def table(self, positions: int, head_dim: int) -> Buffer:
        return self.buffer(positions, head_dim // 2, dtype=COMPLEX64)

    def layers(self) -> list[TransformerBlock]:
        return list(self.layer_list.children.values())  # type: ignore[arg-type]

    def name_all(self, path: str = "") -> None:
        super().name_all(path)
        self.layer_list.name_all("layers")

    def chunk(self, chunk: int, chunks: int) -> list[TransformerBlock]:
        """The layers of one of the stages a pipeline's rank holds."""
        layers = self.layers()
        size = -(-len(layers) // chunks)
        return layers[chunk * size : (chunk + 1) * size]

    def end_chunk(self, chunks: int) -> int:
        """Which of the stages a pipeline's rank holds has the embedding, or norm and head."""
        return 0 if self.first else chunks - 1

    def part(self, h: Tensor, chunk: int, chunks: int) -> Tensor:
        """Such a stage."""
        if chunk == self.end_chunk(chunks):
            return self(h, self.chunk(chunk, chunks))
        for layer in self.chunk(chunk, chunks):
            h = layer(h, self.freqs_cis)
        return h

    def forward(self, tokens: Tensor, layers: Sequence[Module] | None = None) -> Tensor:
        h = self.tok_embeddings(tokens) if self.first else tokens
        for layer in self.layer_list if layers is None else layers:
            h = layer(h, self.freqs_cis)
        if not self.last:
            return h
        h = self.norm(h)
        output = self.output(h)
        return output


# --------------------------------------------------------------------------------------------------------------- Qwen 3


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


# ---------------------------------------------------------------------------------------------------------- DeepSeek V3


def rotate_one(x: Tensor, freqs_cis: Tensor) -> Tensor:
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
        q_pe = rotate_one(q_pe, freqs_cis)
        q = F.cat([q_nope, q_pe], -1)
        kv = self.wkv_a(x)
        kv, k_pe = kv.split([self.latent, self.rope], -1)
        k_pe = rotate_one(k_pe.unsqueeze(2), freqs_cis)
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
