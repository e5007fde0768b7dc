"""The flash-attn CUDA extensions on (fake) tensors: they allocate, in the order of the C++ code, and compute nothing.

Which sizes, and whose code says so: `tape/kernels/flash.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tunecast.tape.kernels import flash
from tunecast.tape.kernels.flash import FlashCall, Sizes, splits_2
from tunecast.tape.op import Op
from tunecast.tape.trace.recorder import Recorder, nbytes, without_modes
from tunecast.tape.trace.values import known

__all__ = [
    "FlashCall", "Sizes", "backward_2", "backward_3", "forward_2", "forward_3", "rows_side_by_side", "splits_2",
]  # fmt: skip


def rows_side_by_side(tensor: Tensor) -> Tensor:
    """The kernels want the last dimension contiguous (`maybe_contiguous` in both Python interfaces)."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _floats(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def forward_2(
    recorder: Recorder, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, call: FlashCall
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, logsumexp, probabilities, random state). The output has the query's strides."""
    size = Sizes.of(q, k, cu_q, call)
    out = torch.empty_like(q)
    lse = _floats(q, *size.rows())
    wide = (size.batch, size.heads, -(-size.length // 128) * 128, -(-size.key_length // 128) * 128)
    probs = torch.empty(wide if call.return_probs and call.dropout else (0,), dtype=q.dtype, device=q.device)
    parts = [_floats(q, *shape) for shape in flash.forward_parts_2(size, call, recorder.card)]
    random = torch.empty(2, dtype=torch.int64, device=q.device)
    _launched(recorder, "flash_attn::fwd", (q, k, v), out, _scores(size, cu_q, call))
    del parts
    return out, lse, probs, random


def backward_2(
    recorder: Recorder, dout: Tensor, q: Tensor, k: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    cu_q: Tensor | None, call: FlashCall,
) -> Tensor:  # fmt: skip
    """The softmax sum, which is what the extension leaves behind; gradients go into the tensors given."""
    size = Sizes.of(q, k, cu_q, call)
    sums, accumulator = flash.backward_floats_2(size, call, recorder.card)
    softmax_d = _floats(q, *sums)
    make = torch.zeros if call.deterministic else torch.empty
    dq_accum = make(accumulator, dtype=torch.float32, device=q.device)
    grouped = size.key_heads != size.heads
    places = (*k.shape[:-2], size.heads, size.width)
    expanded = [torch.empty(places, dtype=q.dtype, device=q.device) for _ in range(2)] if grouped else []
    _launched(recorder, "flash_attn::bwd", (dout, q, k, dq_accum), dq, _scores(size, cu_q, call) * 5 // 2)
    for total, part in zip((dk, dv), expanded, strict=False):
        groups = part.view(*k.shape[:-1], size.heads // size.key_heads, size.width)
        torch.sum(groups, dim=-2, out=total)
    return softmax_d


def forward_3(
    recorder: Recorder, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, call: FlashCall
) -> tuple[Tensor, Tensor]:
    size = Sizes.of(q, k, cu_q, call)
    out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    lse = _floats(q, *size.rows())
    numbers = flash.scheduler_numbers_3(size, call, recorder.card)
    scheduler = torch.empty(numbers, dtype=torch.int32, device=q.device) if numbers else None
    parts = []
    if call.splits > 1:
        parts.append(_floats(q, call.splits, *size.rows(), v.shape[-1]))
        parts.append(_floats(q, call.splits, *size.rows()))
    if scheduler is not None and not flash.one_per_sequence_3(size):
        scheduler.zero_()
    _launched(recorder, "flash_attn_3::fwd", (q, k, v), out, _scores(size, cu_q, call))
    return out, lse


def backward_3(
    recorder: Recorder, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, dq: Tensor, cu_q: Tensor | None, call: FlashCall
) -> None:
    size = Sizes.of(q, k, cu_q, call)
    made = flash.backward_3(size, max(q.shape[-1], v.shape[-1]), call, recorder.card)
    kept = [_floats(q, *shape) for shape in made.floats]
    kept += [torch.zeros(shape, dtype=torch.float32, device=q.device) for shape in made.zeroed]
    kept += [torch.empty(shape, dtype=torch.int32, device=q.device) for shape in made.semaphores]
    _launched(recorder, "flash_attn_3::bwd", (dout, q, k, v), dq, _scores(size, cu_q, call) * 5 // 2)


def _scores(size: Sizes, cu_q: Tensor | None, call: FlashCall) -> int:
    """FLOPs of the forward kernel, the masked half counted as torch counts it (an FMA is 2)."""
    pairs = size.batch * flash.counted_pairs(size.length, size.key_length, call)
    ends = None if cu_q is None else known(cu_q)
    if ends is not None:
        lengths = without_modes(lambda: ends.diff().tolist())
        pairs = sum(flash.counted_pairs(length, length, call) for length in lengths)
    return 4 * size.heads * size.width * pairs


def _launched(recorder: Recorder, name: str, read: tuple[Tensor, ...], written: Tensor, flops: int) -> None:
    recorder.launched(
        Op(name, flops=flops, read_bytes=sum(map(nbytes, read)), written_bytes=nbytes(written),
           dtype=str(written.dtype).removeprefix("torch."), shapes=tuple(tuple(x.shape) for x in read[:3]))
    )  # fmt: skip
