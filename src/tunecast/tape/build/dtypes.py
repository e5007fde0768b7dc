"""Types of numbers, and the strides of a shape."""

from __future__ import annotations

from tunecast.records import NamedTuple

Shape = tuple[int, ...]


class Dtype(NamedTuple):
    name: str
    itemsize: int
    floating: bool = True

    def __str__(self) -> str:
        return self.name


FLOAT32, BFLOAT16, FLOAT16 = Dtype("float32", 4), Dtype("bfloat16", 2), Dtype("float16", 2)
INT64, INT32, UINT8, INT8 = (
    Dtype("int64", 8, False), Dtype("int32", 4, False), Dtype("uint8", 1, False), Dtype("int8", 1, False),
)  # fmt: skip
INT16, BOOL = Dtype("int16", 2, False), Dtype("bool", 1, False)
FLOAT8_E4M3 = Dtype("float8_e4m3fn", 1)
DTYPES = {dtype.name: dtype for dtype in (FLOAT32, BFLOAT16, FLOAT16, INT64, INT32, UINT8, INT8, BOOL)}


def promote(first: Dtype, second: Dtype) -> Dtype:
    """`torch.promote_types`."""
    if first == second:
        return first
    if first.floating != second.floating:
        return first if first.floating else second
    if first.floating:
        return FLOAT32
    return first if first.itemsize >= second.itemsize else second


def broadcast(first: Shape, second: Shape) -> Shape:
    """`torch.broadcast_shapes`."""
    if first == second:
        return first
    length = max(len(first), len(second))
    first, second = (1,) * (length - len(first)) + first, (1,) * (length - len(second)) + second
    return tuple([b if a == 1 else a for a, b in zip(first, second, strict=True)])


def contiguous_strides(shape: Shape) -> Shape:
    strides, step = [0] * len(shape), 1
    for dim in range(len(shape) - 1, -1, -1):
        strides[dim] = step
        if shape[dim] > 1:
            step *= shape[dim]
    return tuple(strides)
