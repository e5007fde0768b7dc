"""What the flash-attn CUDA extensions allocate, and in which order.

Two extensions, two pairs of functions on (fake) tensors:
    FlashAttention 2   csrc/flash_attn/flash_api.cpp of flash-attn 2.8.3: `mha_fwd`, `mha_varlen_fwd`, `mha_bwd`,
                       `mha_varlen_bwd`
    FlashAttention 3   hopper/flash_api.cpp: `mha_fwd`, `mha_bwd`, which take both layouts

Tensors are (batch, length, heads, width), or (tokens, heads, width) where sequences lie end to end (`cu_seqlens`).
Ignored  decoding: a query of one token swaps heads and groups, which no training step does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tunecast.tape.op import Op
from tunecast.tape.trace.recorder import Recorder, nbytes, without_modes
from tunecast.tape.trace.values import known


class Call(NamedTuple):
    """What a caller asks for besides the tensors."""

    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    dropout: float = 0.0
    softcap: float = 0.0
    deterministic: bool = False
    return_probs: bool = False
    max_q: int = 0
    max_k: int = 0
    splits: int = 1


class Sizes(NamedTuple):
    batch: int
    length: int
    key_length: int
    tokens: int
    key_tokens: int
    heads: int
    key_heads: int
    width: int
    varlen: bool

    @staticmethod
    def of(q: Tensor, k: Tensor, cu_q: Tensor | None, call: Call) -> Sizes:
        if cu_q is None:
            batch, length, heads, width = q.shape
            key_length = k.shape[1]
            return Sizes(batch, length, key_length, batch * length, batch * key_length, heads, k.shape[2], width, False)
        tokens, heads, width = q.shape
        return Sizes(
            cu_q.numel() - 1, call.max_q, call.max_k, tokens, k.shape[0], heads, k.shape[1], width, True
        )  # fmt: skip


def rows_side_by_side(tensor: Tensor) -> Tensor:
    """The kernels want the last dimension contiguous (`maybe_contiguous` in both Python interfaces)."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _round(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# ---------------------------------------------------------------- FlashAttention 2


def forward_2(
    recorder: Recorder, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, call: Call
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, logsumexp, probabilities, random state). The output has the query's strides."""
    size = Sizes.of(q, k, cu_q, call)
    out = torch.empty_like(q)
    lse = _floats(q, size.heads, size.tokens) if size.varlen else _floats(q, size.batch, size.heads, size.length)
    wide = (size.batch, size.heads, _round(size.length, 128), _round(size.key_length, 128))
    probs = torch.empty(wide if call.return_probs and call.dropout else (0,), dtype=q.dtype, device=q.device)
    splits = 1 if size.varlen or call.dropout else splits_2(size, recorder.card.sm_count)
    parts = []
    if splits > 1:
        parts.append(_floats(q, splits, size.batch, size.heads, size.length))
        parts.append(_floats(q, splits, size.batch, size.heads, size.length, rounded_width_2(size.width)))
    random = torch.empty(2, dtype=torch.int64, device=q.device)
    _launched(recorder, "flash_attn::fwd", (q, k, v), out, _scores(size, cu_q))
    return out, lse, probs, random


def backward_2(
    recorder: Recorder, dout: Tensor, q: Tensor, k: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    cu_q: Tensor | None, call: Call,
) -> Tensor:  # fmt: skip
    """The softmax sum, which is what the extension leaves behind; gradients go into the tensors given."""
    size = Sizes.of(q, k, cu_q, call)
    rounded = size.tokens + 128 * size.batch if size.varlen else _round(size.length, 128)
    width = rounded_width_2(size.width)
    softmax_d = _floats(q, size.heads, rounded) if size.varlen else _floats(q, size.batch, size.heads, rounded)
    accumulator = (rounded, size.heads, width) if size.varlen else (size.batch, rounded, size.heads, width)
    if call.deterministic:
        copies = -(-recorder.card.sm_count // (size.batch * size.heads))
        dq_accum = torch.zeros((copies, *accumulator), dtype=torch.float32, device=q.device)
    else:
        dq_accum = _floats(q, *accumulator)
    grouped = size.key_heads != size.heads
    places = (*k.shape[:-2], size.heads, size.width)
    expanded = [torch.empty(places, dtype=q.dtype, device=q.device) for _ in range(2)] if grouped else []
    _launched(recorder, "flash_attn::bwd", (dout, q, k, dq_accum), dq, _scores(size, cu_q) * 5 // 2)
    for total, part in zip((dk, dv), expanded, strict=False):
        groups = part.view(*k.shape[:-1], size.heads // size.key_heads, size.width)
        torch.sum(groups, dim=-2, out=total)
    return softmax_d


def rounded_width_2(width: int) -> int:
    return _round(width, 32 if width <= 128 else 64)


def splits_2(size: Sizes, sm_count: int) -> int:
    """`num_splits_heuristic`: few, long rows are cut along the keys until 85 % of the best occupancy is reached."""
    block = 256 if size.width <= 64 else 128 if size.width <= 128 else 64
    key_blocks = -(-size.key_length // block)
    work = size.batch * size.heads * -(-size.length // 64)
    processors = 2 * sm_count
    if work >= 0.8 * processors:
        return 1
    efficiency = {}
    for splits in range(1, min(128, processors, key_blocks) + 1):
        if splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1)):
            waves = work * splits / processors
            efficiency[splits] = waves / -(-work * splits // processors)
    best = max(efficiency.values(), default=0.0)
    return next((splits for splits, value in efficiency.items() if value >= 0.85 * best), 1)


# ---------------------------------------------------------------- FlashAttention 3

WIDTHS_3 = (64, 96, 128, 192, 256)


def forward_3(
    recorder: Recorder, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, call: Call
) -> tuple[Tensor, Tensor]:
    size = Sizes.of(q, k, cu_q, call)
    out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    lse = _floats(q, size.heads, size.tokens) if size.varlen else _floats(q, size.batch, size.heads, size.length)
    one_per_sequence = size.varlen and size.batch <= 992
    masked = call.causal or call.window != (-1, -1)
    if recorder.card.capability >= (9, 0):
        counted = (masked and call.splits == 1) or size.varlen
    else:
        counted = call.splits > 1 if size.varlen else call.causal
    numbers = int(counted) + (size.batch if one_per_sequence else 0)
    scheduler = torch.empty(numbers, dtype=torch.int32, device=q.device) if numbers else None
    parts = []
    if call.splits > 1:
        rows = (size.heads, size.tokens) if size.varlen else (size.batch, size.heads, size.length)
        parts.append(_floats(q, call.splits, *rows, v.shape[-1]))
        parts.append(_floats(q, call.splits, *rows))
    if scheduler is not None and not one_per_sequence:
        scheduler.zero_()
    _launched(recorder, "flash_attn_3::fwd", (q, k, v), out, _scores(size, cu_q))
    return out, lse


def backward_3(
    recorder: Recorder, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, dq: Tensor, cu_q: Tensor | None, call: Call
) -> None:
    """Keys and values with fewer heads are summed in fp32 buffers of their own, and not expanded as in 2."""
    size = Sizes.of(q, k, cu_q, call)
    width = next(w for w in WIDTHS_3 if max(q.shape[-1], v.shape[-1]) <= w)
    block_q, block_k = blocks_3(width, recorder.card.capability, call)
    if size.varlen:
        rows = (size.heads, _round(size.tokens + size.batch * block_q, block_q))
        key_rows = (size.key_heads, _round(size.key_tokens + size.batch * block_k, block_k))
    else:
        rows = (size.batch, size.heads, _round(size.length, block_q))  # type: ignore[assignment]
        key_rows = (size.batch, size.key_heads, _round(size.key_length, block_k))  # type: ignore[assignment]
    kept = [_floats(q, *rows), _floats(q, *rows), _floats(q, *rows, width)]  # softmax sum, logsumexp, dq
    if size.key_heads != size.heads:
        kept += [torch.zeros((*key_rows, width), dtype=torch.float32, device=q.device) for _ in range(2)]
    semaphores = [(-(-size.length // block_q), size.batch, size.heads)]
    if size.key_heads != size.heads and call.deterministic:
        semaphores += [(-(-size.key_length // block_k), size.batch, size.key_heads)] * 2
    kept += [torch.empty(shape, dtype=torch.int32, device=q.device) for shape in semaphores]
    _launched(recorder, "flash_attn_3::bwd", (dout, q, k, v), dq, _scores(size, cu_q) * 5 // 2)


def blocks_3(width: int, capability: tuple[int, int], call: Call) -> tuple[int, int]:
    """kBlockM, kBlockN: rows of queries and of keys a thread block of the backward kernel takes."""
    masked = call.causal or call.window != (-1, -1) or call.softcap > 0
    if capability >= (9, 0):
        queries = {64: 96 if call.causal and call.softcap > 0 else 128, 128: 64 if masked else 80}.get(width, 64)
        return queries, 128 if width <= 128 else 96 if width <= 192 else 80
    if capability in ((8, 6), (8, 9)):
        return 64 if width <= 192 else 32, {64: 128, 96: 128, 128: 96}.get(width, 64)
    return 128 if width <= 64 else 64, 128 if width <= 128 else 80 if width <= 192 else 64


# ---------------------------------------------------------------- both


def _scores(size: Sizes, cu_q: Tensor | None) -> int:
    """FLOPs of the forward kernel, the masked half counted as torch counts it (an FMA is 2)."""
    pairs = size.batch * size.length * size.key_length
    ends = None if cu_q is None else known(cu_q)
    if ends is not None:
        pairs = sum(length**2 for length in without_modes(lambda: ends.diff().tolist()))
    return 4 * size.heads * size.width * pairs


def _launched(recorder: Recorder, name: str, read: tuple[Tensor, ...], written: Tensor, flops: int) -> None:
    recorder.launched(
        Op(name, flops=flops, read_bytes=sum(map(nbytes, read)), written_bytes=nbytes(written),
           dtype=str(written.dtype).removeprefix("torch."), shapes=tuple(tuple(x.shape) for x in read[:3]))
    )  # fmt: skip
