"""torchtitan 0.3's decoder on paper (torchtitan/models/common: decoder.py, `Decoder`; attention.py, `FusedQKVLinear`,
`GQAttention`, `FlexAttention`; rope.py, `ComplexRoPE`, `CosSinRoPE`), as Llama 3 and dense Qwen 3 have it.

One product makes queries, keys and values; each layer has a table of positions of its own, of which a token's row is
looked up; samples packed into a row are kept apart by flex attention's mask, which is made once a micro-batch. The
model ends with its last norm: the head is the loss's (step.py).

Ignored  what initialising weights borrows before the first step: the largest weight twice, and masks of its tails
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.tape.build.attention import rotate_half
from tunecast.tape.build.dtypes import BOOL, INT32, INT64
from tunecast.tape.build.flash import MASK_BLOCK, BlockMask, flex_attention
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer, Linear, Module
from tunecast.tape.build.stacks.torchtitan.model import (
    COMPLEX64,
    Attention,
    RMSNorm,
    Transformer,
    TransformerBlock,
    complex_mul,
    view_as_complex,
    view_as_real,
)
from tunecast.tape.build.stacks.torchtitan.releases import TitanRelease
from tunecast.tape.build.tensor import Tensor

# ---------------------------------------------------------------------------------------------------------- positions


class ComplexRoPE(Module):
    """Neighbours are pairs, and turn as complex numbers."""

    def __init__(self, machine: Machine, positions: int, width: int) -> None:
        super().__init__(machine)
        self.cache = self.table(positions, width)

    def table(self, positions: int, width: int) -> Buffer:
        return self.buffer(positions, width // 2, dtype=COMPLEX64)

    def forward(self, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        reshaped_cache = self.rows_at(positions)
        return self.apply_rotary_emb(query, key, reshaped_cache)

    def rows_at(self, positions: Tensor) -> Tensor:
        """`_reshape_cache`: gathered row by row, or of a single row indexed. That none lies beyond is made sure of."""
        machine, (rows, length) = self.machine, positions.shape
        machine.run("le", (positions,), positions.shape, BOOL).all()
        name = "index" if rows == 1 else "gather"
        return machine.run(name, (self.cache, positions), (rows, length, 1, self.cache.shape[-1]), self.cache.dtype)

    def apply_rotary_emb(self, query: Tensor, key: Tensor, rope_cache: Tensor) -> tuple[Tensor, Tensor]:
        xq_ = view_as_complex(query.float().reshape(*query.shape[:-1], -1, 2))
        xk_ = view_as_complex(key.float().reshape(*key.shape[:-1], -1, 2))
        xq_out = view_as_real(complex_mul(xq_, rope_cache)).reshape(*query.shape)
        xk_out = view_as_real(complex_mul(xk_, rope_cache)).reshape(*key.shape)
        return xq_out.to(query.dtype), xk_out.to(key.dtype)


class CosSinRoPE(ComplexRoPE):
    """Halves are pairs; in fp32."""

    def table(self, positions: int, width: int) -> Buffer:
        return self.buffer(positions, width * 2)

    def apply_rotary_emb(self, query: Tensor, key: Tensor, rope_cache: Tensor) -> tuple[Tensor, Tensor]:
        head_dim = query.shape[-1]
        cos = rope_cache[..., :head_dim]
        sin = rope_cache[..., head_dim : 2 * head_dim]
        query_f = query.float()
        key_f = key.float()
        xq_out = (query_f * cos) + (rotate_half(query_f) * sin)
        xk_out = (key_f * cos) + (rotate_half(key_f) * sin)
        return xq_out.to(query.dtype), xk_out.to(key.dtype)


# -------------------------------------------------------------------------------------------------------- which blocks


def document_mask(positions: Tensor) -> BlockMask:
    """`_create_flex_attention_mask_for_document`: causal, and within a sample, which begins where positions are 0."""
    machine, (rows, length) = positions.machine, positions.shape
    return BlockMask(doc_end_by_token(positions), block_tables(machine, rows, -(-length // MASK_BLOCK)))


def document_ids(document_starts: Tensor) -> Tensor:
    """cumsum(starts.int()).to(torch.int32) - 1; integers are summed as int64, of which a copy is made first."""
    machine, shape = document_starts.machine, document_starts.shape
    narrow = document_starts.to(INT32)
    summed = machine.run("cumsum", (narrow,), shape, INT64, args=(narrow, len(shape) - 1))
    wide = machine.tensor(shape, INT64)
    del narrow, wide
    ids = summed.to(INT32)
    del summed
    return ids - 1


def doc_end_by_token(positions: Tensor) -> Tensor:
    """`get_efficient_causal_mask_mod_for_packed_document` of several rows; of one it has a few vectors less."""
    machine, shape = positions.machine, positions.shape

    def chosen(where: Tensor, one: Tensor) -> Tensor:
        other = machine.run("full_like", (), shape, INT32)
        return machine.run("where", (where, one, other), shape, INT32)

    document_starts = machine.run("eq", (positions,), shape, BOOL)
    document_id = document_ids(document_starts)
    token_idx = machine.run("arange", (), shape[1:], INT32)
    next_doc_start = machine.run("full", (), shape, INT32)
    later = machine.run("gt", (document_id,), shape, BOOL)
    next_doc = machine.run("bitwise_and", (document_starts, later), shape, BOOL)
    del later
    index = chosen(next_doc, document_id - 1).to(INT64)
    source = chosen(next_doc, token_idx)
    machine.launch("scatter_", (next_doc_start, index, source), INT32, source.nbytes)
    del index, source
    gathered = machine.run("gather", (next_doc_start, document_id.to(INT64)), shape, INT32)
    return gathered - 1


def block_tables(machine: Machine, rows: int, blocks: int) -> Sequence[Tensor]:
    """`create_block_mask`, compiled: how many blocks of keys each block of queries looks at in part, or wholly, and
    which; and the other way round. A sort names them, and a column more takes what is beside the point."""
    square, row = (rows, 1, blocks, blocks), (rows, 1, blocks)

    def made(shape: tuple[int, ...]) -> Tensor:
        return machine.run("empty_strided", (), shape, INT32)

    def sort(dense: Tensor) -> Tensor:
        return machine.run_many("sort", (dense,), ((square, INT32), (square, INT64)), args=(dense, True, 3))[1]

    wider = [made((rows, 1, blocks, blocks + 1)) for _ in range(2)]
    dense = [made(square) for _ in range(2)]
    tables = [made(row) for _ in range(2)]
    for each in dense:
        order = sort(each)
        machine.launch("triton::index_put", (each, order), INT32, each.nbytes)
        del order
        tables.append(made(square))
        wider.pop()
        tables.append(made(row))
    for each in dense:
        order = sort(each)
        machine.launch("triton::_to_copy", (order,), INT32, each.nbytes)
        del order
    return [*tables, *dense]


# -------------------------------------------------------------------------------------------------------------- modules


class GQAttention(Attention):
    """`FusedQKVLinear`, `FlexAttention`."""

    rope: ComplexRoPE

    def make_linears(self, config: Mapping[str, Any]) -> None:
        machine, dim = self.machine, config["hidden_size"]
        self.wqkv = Linear(machine, dim, (self.n_heads + 2 * self.n_kv_heads) * self.head_dim)
        self.wo = Linear(machine, self.n_heads * self.head_dim, dim)

    def forward(self, x: Tensor, attention_masks: Any, positions: Any = None) -> Tensor:
        xq, xk, xv = self.qkv_linear(x)
        if self.q_norm is not None:
            xq = self.q_norm(xq)
            xk = self.k_norm(xk)
        xq, xk = self.rope(xq, xk, positions)
        out = self.flex(xq, xk, xv, attention_masks).contiguous()
        bs, seqlen = out.shape[:2]
        out = out.view(bs, seqlen, -1)
        return self.wo(out)

    def qkv_linear(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bs, seqlen = x.shape[:2]
        qkv = self.wqkv(x)
        qkv = qkv.view(bs, seqlen, -1, self.n_rep + 2, self.head_dim)
        xq, xk, xv = qkv.split([self.n_rep, 1, 1], -2)
        return (
            xq.reshape(bs, seqlen, -1, self.head_dim).contiguous(),
            xk.reshape(bs, seqlen, -1, self.head_dim).contiguous(),
            xv.reshape(bs, seqlen, -1, self.head_dim).contiguous(),
        )

    def flex(self, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> Tensor:
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        out = flex_attention(q, k, v, mask, is_region=True)
        return out.transpose(1, 2)


class Qwen3Attention(GQAttention):
    def __init__(self, machine: Machine, config: Mapping[str, Any], release: TitanRelease) -> None:
        super().__init__(machine, config, release)
        self.q_norm = RMSNorm(machine, self.head_dim, release)
        self.k_norm = RMSNorm(machine, self.head_dim, release)


class Llama3Block(TransformerBlock):
    attention_type = GQAttention

    def block(self, x: Tensor, attention_masks: Any, positions: Any = None) -> Tensor:
        h = x + self.attention(self.attention_norm(x), attention_masks, positions)
        out = h + self.feed_forward(self.ffn_norm(h))
        return out


class Qwen3Block(Llama3Block):
    attention_type = Qwen3Attention

    def block(self, x: Tensor, attention_masks: Any, positions: Any = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), attention_masks, positions)
        x = x + self.feed_forward(self.ffn_norm(x))
        return x


class Llama3Model(Transformer):
    block_type = Llama3Block
    rope_type: type[ComplexRoPE] = ComplexRoPE

    def make_tables(self, positions: int, head_dim: int) -> None:
        for layer in self.layers():
            assert isinstance(layer.attention, GQAttention)
            layer.attention.rope = self.rope_type(self.machine, positions, head_dim)

    def forward(self, tokens: Tensor, attention_masks: Any = None, positions: Any = None) -> Tensor:
        """With `_skip_lm_head`."""
        h = self.tok_embeddings(tokens)
        for layer in self.layer_list:
            h = layer(h, attention_masks, positions)
        h = self.norm(h)
        return h


class Qwen3Model(Llama3Model):
    block_type = Qwen3Block
    rope_type = CosSinRoPE
