"""Views and copies: other shapes over the same memory, and new memory where strides do not allow it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.autograd import Gradients, Node, finish, record, start, wants
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT16, FLOAT32, Dtype, Shape, contiguous_strides

if TYPE_CHECKING:
    from tunecast.tape.build.tensor import Tensor


def view_of(x: Tensor, shape: Shape, strides: Shape | None, offset: int | None, back: Any) -> Tensor:
    return record(x.alias(shape, strides, offset), (x,), back)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """A view where strides allow, else a copy."""
    shape = whole_shape(x.numel(), shape)
    strides = view_strides(x, shape)
    if strides is False:
        copy = _view_as(copy_contiguous(x), shape, None)
        copy.is_view = False  # `_unsafe_view`: the copy is nobody else's
        return copy
    return _view_as(x, shape, strides)


def view(x: Tensor, *shape: int) -> Tensor:
    shape = whole_shape(x.numel(), shape)
    strides = view_strides(x, shape)
    assert strides is not False, f"no view of {x.shape} as {shape}"
    return _view_as(x, shape, strides)


def flatten(x: Tensor, start: int, end: int = -1) -> Tensor:
    """Dimensions `start` to `end`, both included, as one."""
    last = end % x.dim() + 1
    return reshape(x, *x.shape[:start], prod(x.shape[start:last]), *x.shape[last:])


def _view_as(x: Tensor, shape: Shape, strides: Shape | None) -> Tensor:
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
    shape, strides = list(x.shape), list(x.stride())
    shape[first], shape[second] = shape[second], shape[first]
    strides[first], strides[second] = strides[second], strides[first]
    out = x.alias(tuple(shape), tuple(strides)).with_numel(x.numel())
    return record(out, (x,), lambda node, gradients: (transpose(gradients[0], first, second),))


def t(x: Tensor) -> Tensor:
    """Of a matrix."""
    return transpose(x, 0, 1)


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


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[i], x[a:b:step], x[None], x[..., i] and tuples of these: one view for each dimension that changes, and one of
    the whole where none does (torch/csrc/autograd/python_variable_indexing.cpp). x[places]: see `rows_at`."""
    items = index if isinstance(index, tuple) else (index,)
    out, dim = x, 0
    for place, item in enumerate(items):
        if isinstance(item, slice):
            out = _slice(out, dim, item)
            dim += 1
        elif item is Ellipsis:
            dim = out.dim() - sum([rest is not None for rest in items[place + 1 :]])
        elif item is None:
            out = unsqueeze(out, dim)
            dim += 1
        elif isinstance(item, int):
            out = select(out, dim, item)
        else:
            return rows_at(x, item)
    return view_of(x, x.shape, x.strides, None, lambda node, gradients: (gradients[0],)) if out is x else out


def rows_at(x: Tensor, places: Tensor) -> Tensor:
    """The gradient is added up in zeros, which sorts the places."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), shape, dtype)
        args = (zeros, [node.take(0)], gradients[0], True)
        return (machine.run("index_put", (zeros, node.take(0), gradients[0]), shape, dtype, args=args),)

    node = start(machine, (x,), back, (places,))
    return finish(node, machine.run("index", (x, places), (*places.shape, *shape[1:]), dtype))


def _slice(x: Tensor, dim: int, item: slice) -> Tensor:
    size = x.shape[dim]
    start, end, step = item.start or 0, size if item.stop is None else item.stop, item.step or 1
    if type(start) is int and start < 0:  # of a symbol nothing is asked that need not be
        start += size
    if type(end) is int and end < 0:
        end += size
    if start == 0 and step == 1 and (end is size or end >= size):
        return x
    return narrow(x, dim, start, end, step)


def narrow(x: Tensor, dim: int, start: int, end: int, step: int = 1) -> Tensor:
    """From `start` to before `end` along one dimension."""
    before, strides, machine = x.shape, x.stride(), x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("slice_backward", gradients, before, gradients[0].dtype),)

    shape = (*before[:dim], -(-(end - start) // step), *before[dim + 1 :])
    offset = x.offset + start * strides[dim]
    return view_of(x, shape, (*strides[:dim], strides[dim] * step, *strides[dim + 1 :]), offset, back)


def select(x: Tensor, dim: int, index: int) -> Tensor:
    dim = dim % x.dim()
    before, strides, machine = x.shape, x.stride(), x.machine
    if type(index) is int and index < 0:
        index += before[dim]
    return view_of(
        x, (*before[:dim], *before[dim + 1 :]), (*strides[:dim], *strides[dim + 1 :]), x.offset + index * strides[dim],
        lambda node, gradients: (machine.run("select_backward", gradients, before, gradients[0].dtype),),
    )  # fmt: skip


def joined_strides(parts: Sequence[Tensor], shape: Shape) -> Shape | None:
    """Of tensors put side by side: channels last where all have them last (aten/src/ATen/native/TensorShape.cpp,
    `cat_compute_output_memory_format`)."""
    if len(shape) != 4 or not all([has_channels_last(part) for part in parts]):
        return None
    _, channels, height, width = shape
    return channels * height * width, 1, width * channels, channels


def has_channels_last(x: Tensor) -> bool:
    """c10/core/MemoryFormat.h, `is_channels_last_strides_2d_s4`."""
    if x.strides is None or x.strides[1] == 0:
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        if x.strides[dim] < least or (dim == 0 and least == x.strides[1]):
            return False
        least = x.strides[dim] * max(1, x.shape[dim])
    return True


def split(x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    """Views side by side; their gradients are put side by side again, zeros where there is none."""
    dim = dim % x.dim()
    machine, shape, dtype = x.machine, x.shape, x.dtype
    strides = x.stride()

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        for place, size in enumerate(sizes):
            if gradients[place] is None:
                gradients[place] = machine.run("zeros", (), (*shape[:dim], size, *shape[dim + 1 :]), dtype)
        return (machine.run("cat", gradients, shape, dtype, strides=joined_strides(gradients, shape)),)

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


def unbind(x: Tensor) -> list[Tensor]:
    """Views of the entries of the first dimension; their gradients are stacked, zeros where there is none."""
    machine, shape, dtype, strides = x.machine, x.shape, x.dtype, x.stride()

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        for place in range(shape[0]):
            if gradients[place] is None:
                gradients[place] = machine.run("zeros", (), shape[1:], dtype)
        return (machine.run("stack", gradients, shape, dtype),)

    parts = [x.alias(shape[1:], strides[1:], x.offset + place * strides[0]) for place in range(shape[0])]
    if wants(machine, x):
        node = Node(machine, back, (x,), ())
        node.outputs = len(parts)
        for number, part in enumerate(parts):
            part.node, part.number, part.requires_grad = node, number, True
    return parts


def chunk(x: Tensor, count: int, dim: int) -> list[Tensor]:
    """In equal parts; the last may be shorter, and there may be fewer."""
    size = -(-x.shape[dim] // count)
    whole, rest = divmod(x.shape[dim], size)
    return split(x, [size] * whole + ([rest] if rest else []), dim)


def expand(x: Tensor, *shape: int) -> Tensor:
    before = x.shape
    new = len(shape) - x.dim()
    sizes = (1,) * new + x.shape
    old = (0,) * new + x.stride()
    triples = zip(sizes, shape, old, strict=True)
    strides = tuple([0 if size == 1 and want != 1 else stride for size, want, stride in triples])
    return view_of(x, tuple(shape), strides, None, lambda node, gradients: (gradients[0].sum_to_size(before),))


def repeat_interleave(x: Tensor, count: int, dim: int) -> Tensor:
    """Each entry of `dim` so often in a row: a copy."""
    shape = (*x.shape[: dim + 1], count, *x.shape[dim + 1 :])
    copy = copy_contiguous(expand(unsqueeze(x, dim + 1), *shape))
    return view(copy, *x.shape[:dim], x.shape[dim] * count, *x.shape[dim + 1 :])


def clone(x: Tensor) -> Tensor:
    """Laid out as the original is."""
    out = x.machine.run("clone", (x,), x.shape, x.dtype, strides=kept_strides(x))
    return record(out, (x,), lambda node, gradients: (gradients[0],))


def copy_contiguous(x: Tensor) -> Tensor:
    """`clone(memory_format=torch.contiguous_format)`."""
    out = x.machine.run("clone", (x,), x.shape, x.dtype)
    return record(out, (x,), lambda node, gradients: (gradients[0],))


def contiguous(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else copy_contiguous(x)


def to(x: Tensor, dtype: Dtype) -> Tensor:
    if x.dtype is dtype or x.dtype == dtype:
        return x
    before = x.dtype
    out = x.machine.run("_to_copy", (x,), x.shape, dtype, strides=kept_strides(x))
    return record(out, (x,), lambda node, gradients: (to(gradients[0], before),))


def to_contiguous(x: Tensor, dtype: Dtype) -> Tensor:
    """`x.to(dtype, memory_format=torch.contiguous_format)`: without another dtype nothing is copied."""
    if x.dtype == dtype:
        return x
    before = x.dtype
    out = x.machine.run("_to_copy", (x,), x.shape, dtype)
    return record(out, (x,), lambda node, gradients: (to(gradients[0], before),))


def to_float(x: Tensor) -> Tensor:
    """`x.float()`."""
    return to(x, FLOAT32)


def cast_to_float32(x: Tensor) -> Tensor:
    """Autocast runs some operations in fp32."""
    if x.machine.autocast is not None and x.dtype in (BFLOAT16, FLOAT16):
        return to(x, FLOAT32)
    return x


def kept_strides(x: Tensor) -> Shape | None:
    """Copies that preserve the format keep the order of dimensions of a dense tensor."""
    if x.strides is None or x.is_contiguous():
        return None
    if x.is_dense():
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
