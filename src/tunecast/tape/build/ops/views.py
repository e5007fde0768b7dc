"""Views and copies: other shapes over the same memory, and new memory where strides do not allow it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, is_dense, record, wants
from tunecast.tape.build.tensor import BFLOAT16, FLOAT16, FLOAT32, Dtype, Shape, Tensor, contiguous_strides


def view_of(x: Tensor, shape: Shape, strides: Shape | None, offset: int | None, back: Any) -> Tensor:
    return record(x.alias(shape, strides, offset), (x,), back)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """A view where strides allow, else a copy."""
    shape = whole_shape(x.numel(), shape)
    strides = view_strides(x, shape)
    if strides is False:
        copied = _viewed(clone(x), shape, None)
        copied.is_view = False  # `_unsafe_view`: the copy is nobody else's
        return copied
    return _viewed(x, shape, strides)


def view(x: Tensor, *shape: int) -> Tensor:
    shape = whole_shape(x.numel(), shape)
    strides = view_strides(x, shape)
    assert strides is not False, f"no view of {x.shape} as {shape}"
    return _viewed(x, shape, strides)


def _viewed(x: Tensor, shape: Shape, strides: Shape | None) -> Tensor:
    before = x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (reshape(gradients[0], *before),)

    return view_of(x, shape, strides, None, back)


def whole_shape(numel: int, shape: Sequence[int]) -> Shape:
    if -1 in shape:
        known = -prod(shape)
        return tuple([numel // known if size == -1 else size for size in shape])
    return tuple(shape)


def view_strides(x: Tensor, shape: Shape) -> Any:
    """Strides of the view, None if contiguous, False if there is none (aten/src/ATen/TensorUtils.cpp,
    `computeStride`)."""
    if x.strides is None or x.is_contiguous():
        return None
    strides = [0] * len(shape)
    place = len(shape) - 1
    chunk_base = x.strides[-1]
    tensor_numel = view_numel = 1
    for dim in range(len(x.shape) - 1, -1, -1):
        tensor_numel *= x.shape[dim]
        ends = dim == 0 or (x.shape[dim - 1] != 1 and x.strides[dim - 1] != tensor_numel * chunk_base)
        if not ends:
            continue
        while place >= 0 and (view_numel < tensor_numel or shape[place] == 1):
            strides[place] = view_numel * chunk_base
            view_numel *= shape[place]
            place -= 1
        if view_numel != tensor_numel:
            return False
        if dim > 0:
            chunk_base = x.strides[dim - 1]
            tensor_numel = view_numel = 1
    return tuple(strides) if place == -1 else False


def transpose(x: Tensor, first: int, second: int) -> Tensor:
    moved = x.transpose(first, second)
    return record(moved, (x,), lambda node, gradients: (transpose(gradients[0], first, second),))


def permute(x: Tensor, *order: int) -> Tensor:
    strides = x.stride()
    inverse = [order.index(d) for d in range(len(order))]
    return view_of(
        x, tuple([x.shape[d] for d in order]), tuple([strides[d] for d in order]), None,
        lambda node, gradients: (permute(gradients[0], *inverse),),
    )  # fmt: skip


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    dim = dim % (x.dim() + 1)
    strides = x.stride()
    step = strides[dim] * x.shape[dim] if dim < x.dim() else 1
    return view_of(
        x, (*x.shape[:dim], 1, *x.shape[dim:]), (*strides[:dim], step, *strides[dim:]), None,
        lambda node, gradients: (squeeze(gradients[0], dim),),
    )  # fmt: skip


def squeeze(x: Tensor, dim: int) -> Tensor:
    dim = dim % x.dim()
    strides = x.stride()
    return view_of(
        x, (*x.shape[:dim], *x.shape[dim + 1 :]), (*strides[:dim], *strides[dim + 1 :]), None,
        lambda node, gradients: (unsqueeze(gradients[0], dim),),
    )  # fmt: skip


def slice_(x: Tensor, dim: int, start: int, end: int, step: int = 1) -> Tensor:
    dim = dim % x.dim()
    before, strides = x.shape, x.stride()
    if start == 0 and end >= before[dim] and step == 1:
        return view_of(x, before, x.strides, None, lambda node, gradients: (gradients[0],))
    shape = (*before[:dim], -(-(end - start) // step), *before[dim + 1 :])

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (x_machine.run("slice_backward", gradients, before, gradients[0].dtype),)

    x_machine = x.machine
    offset = x.offset + start * strides[dim]
    return view_of(x, shape, (*strides[:dim], strides[dim] * step, *strides[dim + 1 :]), offset, back)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    dim = dim % x.dim()
    before, strides, machine = x.shape, x.stride(), x.machine
    return view_of(
        x, (*before[:dim], *before[dim + 1 :]), (*strides[:dim], *strides[dim + 1 :]), x.offset + index * strides[dim],
        lambda node, gradients: (machine.run("select_backward", gradients, before, gradients[0].dtype),),
    )  # fmt: skip


def split(x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    """Views side by side; their gradients are put side by side again, zeros where there is none."""
    dim = dim % x.dim()
    machine, shape, dtype = x.machine, x.shape, x.dtype
    strides = x.stride()

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        for place, size in enumerate(sizes):
            if gradients[place] is None:
                gradients[place] = machine.run("zeros", (), (*shape[:dim], size, *shape[dim + 1 :]), dtype)
        return (machine.run("cat", gradients, shape, dtype),)

    parts = []
    start = 0
    for size in sizes:
        parts.append(x.alias((*shape[:dim], size, *shape[dim + 1 :]), strides, x.offset + start * strides[dim]))
        start += size
    if wants(machine, x):
        node = Node(machine, back, (x,), ())
        node.outputs = len(sizes)
        for number, part in enumerate(parts):
            part.node, part.number, part.requires_grad = node, number, True
    return parts


def chunk(x: Tensor, count: int, dim: int) -> list[Tensor]:
    return split(x, [x.shape[dim] // count] * count, dim)


def alias(x: Tensor) -> Tensor:
    return view_of(x, x.shape, x.strides, None, lambda node, gradients: (gradients[0],))


def clone(x: Tensor) -> Tensor:
    """Contiguous."""
    out = x.machine.run("clone", (x,), x.shape, x.dtype)
    return record(out, (x,), lambda node, gradients: (gradients[0],))


def contiguous(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else clone(x)


def to(x: Tensor, dtype: Dtype) -> Tensor:
    if x.dtype is dtype or x.dtype == dtype:
        return x
    before = x.dtype
    out = x.machine.run("_to_copy", (x,), x.shape, dtype, strides=kept_strides(x))
    return record(out, (x,), lambda node, gradients: (to(gradients[0], before),))


def kept_strides(x: Tensor) -> Shape | None:
    """Copies that preserve the format keep the order of dimensions of a dense tensor."""
    if x.strides is None or x.is_contiguous():
        return None
    if is_dense(x):
        return x.strides
    return dense_strides(x)


def dense_strides(x: Tensor) -> Shape | None:
    """Dimensions in the order of their strides, packed (TensorIterator, `infer_dense_strides`)."""
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda d: (strides[d], -d))
    if any(strides[d] == 0 and x.shape[d] != 1 for d in order):
        return None
    out, step = [0] * x.dim(), 1
    for d in order:
        out[d] = step
        step *= x.shape[d]
    packed = tuple(out)
    return None if packed == contiguous_strides(x.shape) else packed


def cast_to_float32(x: Tensor) -> Tensor:
    """Autocast runs some operations in fp32."""
    if x.machine.autocast is not None and x.dtype in (BFLOAT16, FLOAT16):
        return to(x, FLOAT32)
    return x
