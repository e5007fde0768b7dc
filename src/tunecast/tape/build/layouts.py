"""How the tensors of an operation lie in memory beside each other: whether its kernel can move 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunecast.tape.op import CROSSED, OFF_GRID, SPREAD

if TYPE_CHECKING:
    from tunecast.tape.build.tensor import Tensor


def factors_layout(factors: Sequence[Tensor]) -> str:
    """Tensor cores are fed 16 bytes at a time."""
    for t in factors:
        if len(t.shape) > 1 and t.dtype.floating:
            for step in (t.shape[-1],) if t.strides is None else t.strides[-2:]:
                if step > 1 and step * t.dtype.itemsize % 16:
                    return OFF_GRID
    return ""


def shared_layout(tensors: Sequence[Tensor], result_is_contiguous: bool = False) -> str:
    """Whether an operation, element by element, can go through all of them as through one row: ATen's TensorIterator
    reorders and joins dimensions, but for all tensors alike."""
    if len(tensors) == 1 and tensors[0].strides is None:
        return ""
    found, whole, inner = "", 0, 0
    layout: tuple[int, ...] | None = None
    for t in tensors:
        elements = t.numel()
        strides = None if t.strides is None or t.is_contiguous() else t.strides
        if elements is not whole and whole and elements != whole:
            if elements > 1 < whole:
                found = SPREAD
            continue
        if strides is not None and not t.is_dense():
            found = SPREAD
            continue
        fast = _fastest(t) if strides is not None else len(t.shape) - 1
        if not whole:
            whole, layout, inner = elements, strides, fast
            if result_is_contiguous and fast != len(t.shape) - 1:
                return CROSSED
        elif strides != layout:
            if fast != inner and min(t.shape[-1], whole // max(1, t.shape[-1])) > 1:
                return CROSSED
            found = SPREAD
    return found


def _fastest(t: Tensor) -> int:
    """The dimension whose neighbours are neighbours in memory."""
    steps = [(step, dim) for dim, (step, size) in enumerate(zip(t.stride(), t.shape, strict=True)) if size > 1]
    return min(steps)[1] if steps else len(t.shape) - 1
