"""torchtune's modules on paper (torchtune 0.6.1, torchtune/modules), and what 0.4.0 does otherwise.

Local names are those of the real files: what a name holds lives as long as it does there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import scaled_dot_product
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.compiled import Region
from tunecast.tape.build.dtypes import FLOAT32, Dtype
from tunecast.tape.build.flash import BlockMask, flex_attention
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer, Embedding, Linear, Module, ModuleList
from tunecast.tape.build.recompute import checkpoint
from tunecast.tape.build.tensor import Tensor

OUTPUT_CHUNKS = 8
"""modules/loss/ce_chunked_output_loss.py, `num_output_chunks`."""


class RMSNorm(Module):
    """modules/rms_norm.py: `F.rms_norm` of an fp32 copy. With a weight in fp32 that is one kernel; with a bf16 one ATen
    takes the formula apart in C++ (aten/src/ATen/native/layer_norm.cpp, `rms_norm_composite`)."""

    eps = 1e-6

    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)
        self.scale = self.parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.normed(x.float()).to(x.dtype)

    def normed(self, x: Tensor) -> Tensor:
        if self.scale.dtype == x.dtype:
            return fused_rms_norm(x, self.scale)
        squares = x.pow(2)  # C++ keeps temporaries until the whole expression is done
        means = squares.mean(-1, keepdim=True)
        inverse = F.rsqrt(means.add_(self.eps))
        del squares, means
        result = x * inverse
        return result * self.scale


def fused_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """The result and the inverse deviations."""
    machine, normalized = x.machine, x.shape[-1:]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept, inverse, scale = (node.take(place) for place in (0, 2, 1))
        made = [(t.shape, t.dtype) for t, wanted in zip((kept, scale), node.needs, strict=True) if wanted]
        args = (gradients[0], kept, normalized, inverse, scale, list(node.needs))
        results = iter(machine.run_many("_fused_rms_norm_backward", (gradients[0], kept, scale), made, args=args))
        return [next(results) if wanted else None for wanted in node.needs]

    node = start(machine, (x, weight), back, (x, weight))
    outs = ((x.shape, x.dtype), ((*x.shape[:-1], 1), FLOAT32))
    out, inverse = machine.run_many("_fused_rms_norm", (x, weight), outs, args=(x, normalized, weight, None))
    return finish(node, out, inverse)


class RMSNorm4(RMSNorm):
    """0.4.0, and again since 0.7: written out, and the weight is multiplied in bf16."""

    def forward(self, x: Tensor) -> Tensor:
        x_fp32 = x.float()
        x_normed = (x_fp32 * F.rsqrt(x_fp32.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)  # fmt: skip
        return x_normed * self.scale


class GemmaRMSNorm(RMSNorm):
    """models/gemma/rms_norm.py."""

    def forward(self, x: Tensor) -> Tensor:
        output = self._norm(x.float())
        output = output * (self.scale.float() + 1.0)
        return output.to(x.dtype)

    def _norm(self, x: Tensor) -> Tensor:
        return x * F.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class RotaryPositionalEmbeddings(Module):
    """modules/position_embeddings.py: neighbours are pairs, turned in fp32. The table is made once for all layers;
    before 0.5 most builders copied a layer, and its table with it."""

    numbers_a_position = 1
    """Of the table, times the head's width."""

    def __init__(
        self, machine: Machine, dim: int, max_seq_len: int, shared: RotaryPositionalEmbeddings | None = None
    ) -> None:
        """Each layer has one by name; the tables may be another's."""
        super().__init__(machine)
        self.dim = dim
        self.theta: Buffer = self.buffer(dim // 2) if shared is None else shared.theta
        self.cache: Buffer = self.buffer(max_seq_len, self.numbers_a_position * dim) if shared is None else shared.cache

    def table(self, length: int, input_pos: Tensor | None) -> Tensor:
        if input_pos is None:
            return self.cache[:length]
        shape = (*input_pos.shape, self.cache.shape[1])
        return self.machine.run("index", (self.cache, input_pos), shape, FLOAT32)

    def forward(self, x: Tensor, input_pos: Tensor | None = None) -> Tensor:
        seq_len = x.shape[1]
        rope_cache = self.table(seq_len, input_pos)
        xshaped = x.float().reshape(*x.shape[:-1], -1, 2)
        rope_cache = rope_cache.view(-1, seq_len, 1, self.dim // 2, 2)
        x_out = F.stack(
            [
                xshaped[..., 0] * rope_cache[..., 0] - xshaped[..., 1] * rope_cache[..., 1],
                xshaped[..., 1] * rope_cache[..., 0] + xshaped[..., 0] * rope_cache[..., 1],
            ],
            -1,
        )
        x_out = x_out.view(*x.shape)
        return x_out.to(x.dtype)


class HalvesRotaryPositionalEmbeddings(RotaryPositionalEmbeddings):
    """models/phi3/_position_embeddings.py: halves are pairs; x is promoted to the table's fp32 by the products."""

    numbers_a_position = 2

    def forward(self, x: Tensor, input_pos: Tensor | None = None) -> Tensor:
        seq_len, head_dim = x.shape[1], x.shape[-1]
        rope_cache = self.table(seq_len, input_pos)
        rope_cache = rope_cache.view(-1, seq_len, 1, head_dim * 2)
        cos = self.as_used(rope_cache[..., :head_dim], x.dtype)
        sin = self.as_used(rope_cache[..., head_dim : 2 * head_dim], x.dtype)
        x1 = x[..., : head_dim // 2]
        x2 = x[..., head_dim // 2 : head_dim]
        rotated = F.cat((-x2, x1), -1)
        x_out = x * cos + rotated * sin
        return x_out.to(x.dtype)

    def as_used(self, numbers: Tensor, dtype: Dtype) -> Tensor:
        return numbers


class Qwen2RotaryPositionalEmbeddings(HalvesRotaryPositionalEmbeddings):
    """models/qwen2/_positional_embeddings.py: all in the layer's dtype."""

    def as_used(self, numbers: Tensor, dtype: Dtype) -> Tensor:
        return numbers.to(dtype)


class MultiHeadAttention(Module):
    """modules/attention.py. Keys and values are copied for every query head."""

    def __init__(
        self, machine: Machine, projections: Sequence[Module], heads: tuple[int, int], head_dim: int,
        pos_embeddings: RotaryPositionalEmbeddings,
    ) -> None:  # fmt: skip
        super().__init__(machine)
        self.num_heads, self.num_kv_heads = heads
        self.head_dim = head_dim
        self.q_proj, self.k_proj, self.v_proj, self.output_proj = projections
        self.pos_embeddings = pos_embeddings

    def forward(self, x: Tensor, y: Tensor, mask: BlockMask | None = None, input_pos: Tensor | None = None) -> Tensor:
        b, s_x, _ = x.shape
        q, k, v = self.qkv(x, y, input_pos)
        output = scaled_dot_product(q, k, v) if mask is None else flex_attention(q, k, v, mask)
        output = output.transpose(1, 2).contiguous().view(b, s_x, -1)
        return self.output_proj(output)

    def qkv(self, x: Tensor, y: Tensor, input_pos: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        b, s_x, _ = x.shape
        q = self.q_proj(x)
        q = q.view(b, s_x, self.num_heads, self.head_dim)
        q = self.pos_embeddings(q, input_pos=input_pos)
        q = q.transpose(1, 2)
        k = self.k_proj(y)
        v = self.v_proj(y)
        k = k.view(b, s_x, -1, self.head_dim)
        v = v.view(b, s_x, -1, self.head_dim)
        k = self.pos_embeddings(k, input_pos=input_pos)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        if self.num_heads != self.num_kv_heads:
            expand_shape = (b, self.num_kv_heads, self.num_heads // self.num_kv_heads, s_x, self.head_dim)
            k = k.unsqueeze(2).expand(*expand_shape).reshape(b, self.num_heads, s_x, self.head_dim)
            v = v.unsqueeze(2).expand(*expand_shape).reshape(b, self.num_heads, s_x, self.head_dim)
        return q, k, v

    def project(self, x: Tensor, y: Tensor, input_pos: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """`forward` as far as the attention call, for the compiler."""
        with self.machine.within(self.path):
            return self.qkv(x, y, input_pos)

    def after(self, output: Tensor) -> Tensor:
        """And from there on."""
        b, _, s_x, _ = output.shape
        output = output.transpose(1, 2).contiguous().view(b, s_x, -1)
        return self.output_proj(output)


class MultiHeadAttention4(MultiHeadAttention):
    """0.4.0 copies keys and values before their heads are moved forward."""

    def qkv(self, x: Tensor, y: Tensor, input_pos: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        b, s_x, _ = x.shape
        q = self.q_proj(x)
        q = q.view(b, s_x, self.num_heads, self.head_dim)
        q = self.pos_embeddings(q, input_pos=input_pos)
        q = q.transpose(1, 2)
        k = self.k_proj(y)
        v = self.v_proj(y)
        k = k.view(b, s_x, -1, self.head_dim)
        k = self.pos_embeddings(k, input_pos=input_pos)
        k = k.view(b, s_x, self.num_kv_heads, 1, self.head_dim)
        v = v.view(b, s_x, self.num_kv_heads, 1, self.head_dim)
        if self.num_heads != self.num_kv_heads:
            q_per_kv = self.num_heads // self.num_kv_heads
            k = k.expand(b, s_x, self.num_kv_heads, q_per_kv, self.head_dim)
            v = v.expand(b, s_x, self.num_kv_heads, q_per_kv, self.head_dim)
        k = k.reshape(b, s_x, -1, self.head_dim)
        v = v.reshape(b, s_x, -1, self.head_dim)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        return q, k, v


class FeedForward(Module):
    def __init__(self, machine: Machine, projections: Sequence[Module], activation: Any) -> None:
        super().__init__(machine)
        self.w1, self.w2, self.w3 = projections
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation(self.w1(x))
        h = h * self.w3(x)
        h = self.w2(h)
        return h


class TransformerSelfAttentionLayer(Module):
    """modules/transformer.py; checkpointed by torch.distributed's wrapper around it, which hands keyword arguments on
    as they are."""

    checkpoint = False
    regions: Sequence[Region] = ()

    def __init__(self, machine: Machine, attn: MultiHeadAttention, mlp: FeedForward, norms: Sequence[RMSNorm]) -> None:
        super().__init__(machine)
        self.attn, self.mlp = attn, mlp
        self.sa_norm, self.mlp_norm = norms

    def compile(self) -> None:
        """training/_compile.py: each layer is a region. Flex attention is kept from the compiler, so with a mask of
        blocks there are four: graphs end in every function that leads to it."""
        attn = self.attn
        self.regions = [
            Region(self.machine, function)
            for function in (super().__call__, self.sa_norm, attn.project, attn.after, self.after_attention)
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = self.compiled if self.regions else super().__call__
        if not self.checkpoint:
            return run(*args, **kwargs)

        def again(*args: Any) -> Any:
            return run(*args, **kwargs)

        return checkpoint(self.machine, again, *args)

    def compiled(self, x: Tensor, mask: BlockMask | None = None, input_pos: Tensor | None = None) -> Any:
        whole, sa_norm, project, after, after_attention = self.regions
        if mask is None:
            return whole(x)
        h = sa_norm(x)
        q, k, v = project(h, h, input_pos)
        del h
        output = flex_attention(q, k, v, mask)
        del q, k, v
        attn_out = after(output)
        return after_attention(attn_out, x)

    def forward(self, x: Tensor, mask: BlockMask | None = None, input_pos: Tensor | None = None) -> Tensor:
        h = self.sa_norm(x)
        attn_out = self.attn(h, h, mask=mask, input_pos=input_pos)
        h = attn_out + x
        mlp_out = self.mlp(self.mlp_norm(h))
        out = h + mlp_out
        return out

    def after_attention(self, attn_out: Tensor, x: Tensor) -> Tensor:
        """The rest of it, for the compiler."""
        h = attn_out + x
        mlp_out = self.mlp(self.mlp_norm(h))
        return h + mlp_out


class TiedLinear(Module):
    """modules/tied_linear.py: the head is the embedding."""

    def __init__(self, tied_module: Embedding) -> None:
        super().__init__(tied_module.machine)
        self.weight_of = (tied_module,)  # not a child: its parameters are counted once

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_of[0].weight)


class GemmaNormEmbeddings(Embedding):
    """models/gemma/gemma_norm_embedding.py; the factor stays on the host."""

    scaling = 1.0

    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids)
        return x * self.scaling


class TransformerDecoder(Module):
    """modules/transformer.py."""

    num_output_chunks = 0
    offload: Any = None
    """Where saved tensors go away, those of the head stay (`get_act_offloading_ctx_manager`)."""

    skip_output_layer = False
    """Since 0.7: the loss calls the head."""

    def __init__(
        self, machine: Machine, tok_embeddings: Embedding, layers: ModuleList, norm: Module, output: Module
    ) -> None:
        super().__init__(machine)
        self.tok_embeddings, self.layer_list, self.norm, self.output = tok_embeddings, layers, norm, output
        self.children = {"layers" if name == "layer_list" else name: m for name, m in self.children.items()}

    def layers(self) -> Any:
        return iter(self.layer_list)

    def forward(self, tokens: Tensor, mask: BlockMask | None = None, input_pos: Tensor | None = None) -> Any:
        h = self.tok_embeddings(tokens)
        for layer in self.layer_list:
            h = layer(h, mask=mask, input_pos=input_pos)
        return self.unembed(h)

    def head(self, h: Tensor) -> Any:
        if self.offload is None:
            return self.output(h)
        with self.offload.paused():
            return self.output(h)

    def unembed(self, h: Tensor) -> Any:
        """The caller keeps the last layer's result; in 0.4.0, where this was part of it, it does not."""
        h = self.norm(h)
        if self.skip_output_layer:
            return h
        if self.num_output_chunks:
            return [self.head(chunk) for chunk in h.chunk(self.num_output_chunks, 1)]
        return self.head(h).float()


class TransformerDecoder4(TransformerDecoder):
    def forward(self, tokens: Tensor, mask: BlockMask | None = None, input_pos: Tensor | None = None) -> Any:
        h = self.tok_embeddings(tokens)
        for layer in self.layer_list:
            h = layer(h, mask=mask, input_pos=input_pos)
        h = self.norm(h)
        if self.num_output_chunks:
            output: Any = [self.head(chunk) for chunk in h.chunk(self.num_output_chunks, 1)]
        else:
            output = self.head(h).float()
        return output


class CrossEntropy(Module):
    """torch.nn.CrossEntropyLoss over all logits."""

    ignore_index = -100

    region: Region | None = None

    def compile(self) -> None:
        self.region = Region(self.machine, F.cross_entropy)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (self.region or F.cross_entropy)(logits, labels)


class CEWithChunkedOutputLoss(CrossEntropy):
    """modules/loss/ce_chunked_output_loss.py: one chunk at a time is brought to fp32."""

    def compile(self) -> None:
        self.region = Region(self.machine, self.compute_cross_entropy)

    def compute_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), labels)

    def forward(self, logits: Any, labels: Tensor) -> Tensor:
        compute_cross_entropy = self.region or self.compute_cross_entropy
        total_elements = labels.ne(self.ignore_index).sum()
        flat_labels = [target_chunk.reshape(-1) for target_chunk in labels.chunk(OUTPUT_CHUNKS, 1)]
        flat = [logit_chunk.reshape(-1, logit_chunk.shape[-1]) for logit_chunk in logits]
        total_loss: Any = None
        for logits_chunk, labels_chunk in zip(flat, flat_labels, strict=True):
            found = compute_cross_entropy(logits_chunk, labels_chunk)
            total_loss = found + 0.0 if total_loss is None else total_loss.add_(found)
            del found
        return total_loss / total_elements


class LoRALinear(Linear):
    """modules/peft/lora.py."""

    scaling = 1.0

    def __init__(self, machine: Machine, inputs: int, outputs: int, bias: bool, rank: int, dropout: float) -> None:
        super().__init__(machine, inputs, outputs, bias)
        self.dropout = dropout
        self.lora_a = Linear(machine, inputs, rank)
        self.lora_b = Linear(machine, rank, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        lora_out = self.lora_a(F.dropout(x, self.dropout))
        lora_out = self.lora_b(lora_out) * self.scaling
        return out + lora_out
