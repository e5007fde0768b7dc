"""The flash-attn package on paper, as transformers calls it (integrations/flash_attention.py,
modeling_flash_attention_utils.py of 5.17.0; flash_attn_interface.py of both generations).

torch's flex attention on paper, compiled as torchtune compiles it (torch/nn/attention/flex_attention.py; the kernels
and their buffers are Inductor's, torch/_inductor/kernel/flex).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import repeat_kv
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT32, INT64, Dtype, Shape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels import flash
from tunecast.tape.kernels.flash import FlashCall, Sizes

XFORMERS_GUESSED = "attention xformers: FlashAttention 2 is taken in its place, which keeps as much"
WIDEST_HEAD = 256
"""Dao-AILab/flash-attention 2.8, csrc/flash_attn/flash_api.cpp, `mha_fwd`; hopper/flash_api.cpp: the same."""


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, window: int | None, softcap: float | None,
    position_ids: Tensor | None, causal: bool = True,
) -> Tensor:  # fmt: skip
    """`flash_attention_forward`: from [batch, heads, length, width] to [batch, length, heads, width]."""
    query = query.transpose(1, 2)
    key = key.transpose(1, 2)
    value = value.transpose(1, 2)
    width, value_width = query.shape[-1], value.shape[-1]
    if width > WIDEST_HEAD:
        told = f"flash-attn has no kernel for heads of {width}; its widest have {WIDEST_HEAD}. To fix: sdpa"
        raise Unsupported.at("attention", told)
    if value_width != width:
        value = F.pad(value, width - value_width)
    out = attend(query, key, value, dropout, window, softcap, position_ids, causal)
    return out[..., :value_width] if value_width != width else out


def taken_dtype(query: Tensor) -> Dtype:
    """fp32, which the kernels do not take, becomes what autocast or the weights say."""
    machine = query.machine
    return (machine.autocast or machine.weights_dtype) if query.dtype == FLOAT32 else query.dtype


def attend(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, window: int | None, softcap: float | None,
    position_ids: Tensor | None, causal: bool = True,
) -> Tensor:  # fmt: skip
    """`_flash_attention_forward`."""
    if query.dtype == FLOAT32:
        dtype = taken_dtype(query)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    is_packed = None if position_ids is None else _is_packed(position_ids, query.shape[0])
    if query.machine.era.drops_packing_answer:
        is_packed = None
    sides = (window - 1, window - 1) if window is not None and key.shape[1] > window else (-1, -1)
    call = FlashCall(causal, sides, dropout, softcap or 0.0)
    if query.machine.attention == "xformers":
        query.machine.guesses[XFORMERS_GUESSED] = None
    out = (attend_3 if query.machine.attention.endswith("3") else attend_2)(query, key, value, call)
    del is_packed
    return out


def _is_packed(position_ids: Tensor, batch: int) -> Tensor | None:
    """Only one long row can be several sequences; the answer stays on the card."""
    machine, length = position_ids.machine, position_ids.shape[1]
    if machine.era.compares_positions:
        apart = machine.run("sub", (position_ids,), (1, length - 1), INT64)
        rising = apart.ge(0)
        del apart
        rising.all()
        return None
    if machine.era.looks_at_rows_first and batch != 1:
        return None
    arange = machine.run("arange", (), (length,), INT64)
    smallest = machine.run("min", (position_ids,), (), INT64, args=(position_ids,))
    increasing = arange + smallest
    del arange, smallest
    if batch != 1:
        return None
    apart = (increasing - position_ids).abs().sum((0, 1))
    return machine.run("_to_copy", (apart,), (), BOOL)


def rows_side_by_side(x: Tensor) -> Tensor:
    """`maybe_contiguous`."""
    return x if x.stride()[-1] == 1 else x.machine.run("clone", (x,), x.shape, x.dtype)


def pad_width(x: Tensor) -> Tensor:
    missing = -x.shape[-1] % 8
    return F.pad(x, missing) if missing else x


def cut(x: Tensor, width: int) -> Tensor:
    whole = x.shape[-1] == width
    return x.alias((*x.shape[:-1], width), x.strides if whole else x.stride())


def like(x: Tensor) -> Tensor:
    return pointwise("empty_like", x)


def scores(size: Sizes, call: FlashCall) -> int:
    return 4 * size.heads * size.width * size.batch * flash.counted_pairs(size.length, size.key_length, call)


def new_tensors(x: Tensor, shapes: Sequence[Shape], dtype: Dtype) -> list[Tensor]:
    return [x.machine.tensor(shape, dtype) for shape in shapes]


def attend_2(query: Tensor, key: Tensor, value: Tensor, call: FlashCall) -> Tensor:
    """FlashAttnFunc; widths are padded to a multiple of 8 inside it, without history."""
    machine = query.machine
    node = start(machine, (query, key, value), _back_2(call))
    with machine.no_grad():
        q, k, v = (pad_width(x) for x in (query, key, value))
        rows = [rows_side_by_side(x) for x in (q, k, v)]
        size = Sizes.of(rows[0], rows[1], None, call)
        machine.launch("flash_attn::fwd", rows, q.dtype, q.nbytes, scores(size, call))
        out = like(rows[0])
        lse = machine.tensor(size.rows(), FLOAT32)
        parts = new_tensors(q, flash.forward_parts_2(size, call, machine.card), FLOAT32)
        random = machine.tensor((2,), INT64)
        del parts, rows
        given = cut(out, query.shape[-1])
    return finish(node, given, q, k, v, out, lse, random)


def _back_2(call: FlashCall) -> Any:
    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, v, out = (node.take(place) for place in range(4))
        width = gradients[0].shape[-1]
        dq, dk, dv = like(q), like(k), like(v)
        dout = rows_side_by_side(pad_width(gradients[0]))
        q, k, v, out = (rows_side_by_side(x) for x in (q, k, v, out))
        _kernel_2(dout, q, k, v, call)
        return [cut(x, width) for x in (dq, dk, dv)]

    return back


def _kernel_2(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, call: FlashCall) -> None:
    machine = q.machine
    size = Sizes.of(q, k, None, call)
    machine.launch("flash_attn::bwd", (dout, q, k), q.dtype, q.nbytes, scores(size, call) * 5 // 2)
    kept = new_tensors(q, flash.backward_floats_2(size, call, machine.card), FLOAT32)
    if size.key_heads != size.heads:
        kept += new_tensors(q, [(*k.shape[:-2], size.heads, size.width)] * 2, q.dtype)


def attend_3(query: Tensor, key: Tensor, value: Tensor, call: FlashCall) -> Tensor:
    machine = query.machine
    node = start(machine, (query, key, value), _back_3(call))
    with machine.no_grad():
        rows = [rows_side_by_side(query), rows_side_by_side(key)]
        size = Sizes.of(rows[0], rows[1], None, call)
        machine.launch("flash_attn_3::fwd", (*rows, value), query.dtype, query.nbytes, scores(size, call))
        out = machine.tensor((*query.shape[:-1], value.shape[-1]), query.dtype)
        lse = machine.tensor(size.rows(), FLOAT32)
        numbers = flash.scheduler_numbers_3(size, call, machine.card)
        new_tensors(query, [(numbers,)] if numbers else [], INT32)
        del rows
    return finish(node, out, query, key, value, out.detach(), lse)


def _back_3(call: FlashCall) -> Any:
    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, v, out = (node.take(place) for place in range(4))
        dq, dk, dv = like(q), like(k), like(v)
        rows = [rows_side_by_side(x) for x in (gradients[0], q, k, v, out)]
        size = Sizes.of(rows[1], rows[2], None, call)
        machine = q.machine
        machine.launch("flash_attn_3::bwd", rows[:4], q.dtype, q.nbytes, scores(size, call) * 5 // 2)
        shapes = flash.backward_3(size, max(q.shape[-1], v.shape[-1]), call, machine.card)
        kept = new_tensors(q, shapes.floats + shapes.zeroed, FLOAT32) + new_tensors(q, shapes.semaphores, INT32)
        del kept
        return dq, dk, dv

    return back


# ----------------------------------------------------------------------------------------------- torch's flex attention


FLEX_GUESSED = (
    "attention flex_attention: torch's kernel as torchtune compiles it is taken, which was not compared under "
    "transformers; masks as a table of blocks and tuning of its kernels are left out, so that it needs a little more"
)
MASK_BLOCK = 128
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
    blocks = -(-length // MASK_BLOCK)
    whole = blocks * MASK_BLOCK
    padded = machine.run("constant_pad_nd", (mask_tensor,), (batch, whole, whole), BOOL)
    sides = (batch, blocks, MASK_BLOCK, blocks, MASK_BLOCK)
    counts = padded.alias(sides, None).sum((2, 4))
    del padded
    tables = []
    for _ in range(4):
        tables.append(machine.run("_to_copy", (counts,), (batch, 1, blocks), INT32))
        tables.append(machine.run("_to_copy", (counts,), (batch, 1, blocks, blocks), INT32))
    return BlockMask(document_ids, tables)


def flex_attention_forward(query: Tensor, key: Tensor, value: Tensor, groups: int, dropout: float) -> Tensor:
    """transformers/integrations/flex_attention.py, `flex_attention_forward`: heads share keys where there are a power
    of two of them."""
    machine, heads = query.machine, query.shape[1]
    if dropout:
        raise Unsupported.at("attention", f"flex_attention knows no dropout; config.json asks for {dropout}")
    machine.guesses[FLEX_GUESSED] = None
    if heads & (heads - 1):
        key = repeat_kv(key, groups)
        value = repeat_kv(value, groups)
    attn_output = flex_attention(query, key, value)
    return attn_output.transpose(1, 2).contiguous()


def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask | None = None, is_region: bool = False
) -> Tensor:
    """Besides the result the logarithms of the sums are kept; the backward pass begins with the products of results and
    their gradients, a number a row, and is done with the results then. `is_region`: with
    `wrap_inductor_compiled_regions`, compiled code is one operation, which holds what it is given until it is done, and
    gives back what its gradient needs, queries, keys and values too."""
    machine = query.machine
    batch, heads, length, width = query.shape
    flops = 2 * batch * heads * length * key.shape[2] * (width + value.shape[3])
    rows = (batch, heads, length)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, v, lse, result = node.taken
        node.taken = node.saved = ()
        machine.launch("flex_attention_backward", (gradients[0], q, k), q.dtype, q.nbytes, flops * 5 // 2)
        delta = machine.tensor(rows, FLOAT32)
        if not is_region:
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

    def region() -> list[Tensor]:
        machine.launch("flex_attention", (query, key, value), query.dtype, query.nbytes, flops)
        lse = machine.tensor(rows, FLOAT32)
        highest = machine.tensor(rows, FLOAT32)
        out = machine.tensor(query.shape, query.dtype)
        out.strides = F.kept_strides(query)
        del highest
        return [out, lse, query, key, value]

    if not is_region:
        node = start(machine, (query, key, value), back, (query, key, value))
        out, lse = region()[:2]
        return finish(node, out, lse, out.detach())
    node = start(machine, (query, key, value), back)
    out, lse, *given = machine.run_region("flex_attention", region)
    return finish(node, out, *given, lse, out.detach())
