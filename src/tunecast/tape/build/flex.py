"""torch's flex attention on paper, compiled as torchtune compiles it (torch/nn/attention/flex_attention.py; the kernels
and their buffers are Inductor's, torch/_inductor/kernel/flex)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor

BLOCK = 128
"""Positions a side of a block of the mask has, `_DEFAULT_SPARSE_BLOCK_SIZE`."""


class BlockMask:
    """Which blocks of keys each block of queries looks at, wholly or in part, and the other way round."""

    def __init__(self, document_ids: Tensor, tables: Sequence[Tensor]) -> None:
        self.document_ids, self.tables = document_ids, tables


def document_mask(machine: Machine, batch: int, length: int) -> BlockMask:
    """torchtune/modules/attention_utils.py, `packed_block_causal_mask`: each row's samples are kept apart. The mask is
    made whole, a byte a pair of positions, and its blocks counted. Vectors of a few numbers are left out."""
    document_ids = machine.run("_to_copy", (), (batch, length), INT64)
    q_idx = machine.run("arange", (), (length,), INT64)
    kv_idx = machine.run("arange", (), (length,), INT64)
    causal_mask = machine.run("ge", (q_idx, kv_idx), (length, length), BOOL)
    rows = machine.run("index", (document_ids, q_idx), (batch, length), INT64)
    columns = machine.run("index", (document_ids, kv_idx), (batch, length), INT64)
    document = machine.run("eq", (rows, columns), (batch, length, length), BOOL)
    del rows, columns
    mask_tensor = machine.run("bitwise_and", (causal_mask, document), (batch, length, length), BOOL)
    del q_idx, kv_idx, causal_mask, document
    blocks = -(-length // BLOCK)
    whole = blocks * BLOCK
    padded = machine.run("constant_pad_nd", (mask_tensor,), (batch, whole, whole), BOOL)
    sides = (batch, blocks, BLOCK, blocks, BLOCK)
    counts = padded.alias(sides, None).sum((2, 4))
    del padded
    tables = []
    for _ in range(4):
        tables.append(machine.run("_to_copy", (counts,), (batch, 1, blocks), INT32))
        tables.append(machine.run("_to_copy", (counts,), (batch, 1, blocks, blocks), INT32))
    return BlockMask(document_ids, tables)


def flex_attention(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask) -> Tensor:
    """Besides the result the logarithms of the sums are kept; the backward pass begins with the products of results and
    their gradients, a number a row, and is done with the results then."""
    machine = query.machine
    batch, heads, length, width = query.shape
    flops = 2 * batch * heads * length * key.shape[2] * (width + value.shape[3])
    rows = (batch, heads, length)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, v, lse, result = node.taken
        node.taken = node.saved = ()
        machine.launch("flex_attention_backward", (gradients[0], q, k), q.dtype, q.nbytes, flops * 5 // 2)
        delta = machine.tensor(rows, FLOAT32)
        del result
        made = [
            machine.tensor(x.shape, x.dtype) if needed else None
            for x, needed in zip((q, k, v), node.needs, strict=True)
        ]
        for gradient, like in zip(made, (q, k, v), strict=True):
            if gradient is not None:
                gradient.strides = F.kept_strides(like)
        del delta, lse
        return made

    node = start(machine, (query, key, value), back, (query, key, value))
    machine.launch("flex_attention", (query, key, value), query.dtype, query.nbytes, flops)
    lse = machine.tensor(rows, FLOAT32)
    highest = machine.tensor(rows, FLOAT32)
    out = machine.tensor(query.shape, query.dtype)
    out.strides = F.kept_strides(query)
    del highest
    return finish(node, out, lse, out.detach())
