"""Operations on tensors without contents: what each makes and saves, and what its gradient makes, in torch's order.

Gradient formulas are those of tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp; where two
inputs want a gradient the generated code computes the one first whose name comes first (`mat2` before `self`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, is_dense, record, start, wants
from tunecast.tape.build.tensor import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    INT64,
    Dtype,
    Machine,
    Shape,
    Tensor,
    contiguous_strides,
)

# ------------------------------------------------------------------------------------------------------- views


def view_of(x: Tensor, shape: Shape, strides: Shape | None, offset: int | None, back: Any) -> Tensor:
    return record(x.alias(shape, strides, offset), (x,), back)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """A view where strides allow, else a copy."""
    shape = whole_shape(x.numel(), shape)
    strides = view_strides(x, shape)
    if strides is False:
        copied = view(clone(x), *shape)
        copied.is_view = False  # `_unsafe_view`: the copy is nobody else's
        return copied
    return view(x, *shape)


def view(x: Tensor, *shape: int) -> Tensor:
    shape = whole_shape(x.numel(), shape)
    before = x.shape
    strides = view_strides(x, shape)
    assert strides is not False, f"no view of {x.shape} as {shape}"

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


def expand(x: Tensor, *shape: int) -> Tensor:
    before = x.shape
    new = len(shape) - x.dim()
    sizes = (1,) * new + x.shape
    old = (0,) * new + x.stride()
    triples = zip(sizes, shape, old, strict=True)
    strides = tuple([0 if size == 1 and want != 1 else stride for size, want, stride in triples])
    return view_of(x, tuple(shape), strides, None, lambda node, gradients: (sum_to(gradients[0], before),))


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


# ------------------------------------------------------------------------------------------------------- copies


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


# ------------------------------------------------------------------------------------------------- element-wise


def promoted(first: Dtype, second: Dtype) -> Dtype:
    if first == second:
        return first
    if first.floating != second.floating:
        return first if first.floating else second
    if first.floating:
        return FLOAT32
    return first if first.itemsize >= second.itemsize else second


def broadcast(first: Shape, second: Shape) -> Shape:
    if first == second:
        return first
    length = max(len(first), len(second))
    first, second = (1,) * (length - len(first)) + first, (1,) * (length - len(second)) + second
    return tuple([b if a == 1 else a for a, b in zip(first, second, strict=True)])


def elementwise_strides(shape: Shape, *inputs: Tensor) -> Shape | None:
    for x in inputs:
        if x.shape == shape:
            if x.strides is None or x.is_contiguous():
                return None
            return kept_strides(x)
    return None


def sum_to(x: Tensor, shape: Shape) -> Tensor:
    """Sum over what was broadcast (aten/src/ATen/ExpandUtils.h, `sum_to`)."""
    if x.shape == shape:
        return x
    leading = x.dim() - len(shape)
    dims = [*range(leading), *(d for d in range(leading, x.dim()) if shape[d - leading] == 1 and x.shape[d] != 1)]
    if dims:
        x = total(x, dims, keepdim=True)
    return view(x, *shape) if leading else x


def add(a: Tensor, b: Tensor) -> Tensor:
    shape, dtype = broadcast(a.shape, b.shape), promoted(a.dtype, b.dtype)
    out = a.machine.run("add", (a, b), shape, dtype, strides=elementwise_strides(shape, a, b))
    return record(out, (a, b), lambda node, gradients: (gradients[0], gradients[0]))


def subtract(a: Tensor, b: Tensor) -> Tensor:
    shape, dtype = broadcast(a.shape, b.shape), promoted(a.dtype, b.dtype)
    out = a.machine.run("sub", (a, b), shape, dtype, strides=elementwise_strides(shape, a, b))

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return gradients[0], map_("neg", gradients[0]) if node.needs[1] else None

    return record(out, (a, b), back)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    shape, dtype = broadcast(a.shape, b.shape), promoted(a.dtype, b.dtype)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        second = first = None
        if node.needs[1]:
            second = multiply(gradient, node.take(0))
        if node.needs[0]:
            first = multiply(gradient, node.take(1))
        return first, second

    node = start(a.machine, (a, b), back, (a if b.requires_grad else None, b if a.requires_grad else None))
    return finish(node, a.machine.run("mul", (a, b), shape, dtype, strides=elementwise_strides(shape, a, b)))


def divide(a: Tensor, b: Tensor) -> Tensor:
    shape, dtype = broadcast(a.shape, b.shape), promoted(a.dtype, b.dtype)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        second = first = None
        if node.needs[1]:  # -grad * ((self / other) / other)
            minus = map_("neg", gradient)
            once = divide(node.take(0), node.take(1))
            twice = divide(once, node.take(1))
            second = multiply(minus, twice)
            del minus, once, twice
        if node.needs[0]:
            first = divide(gradient, node.take(1))
        return first, second

    node = start(a.machine, (a, b), back, (a if b.requires_grad else None, b if wants(a.machine, a, b) else None))
    return finish(node, a.machine.run("div", (a, b), shape, dtype, strides=elementwise_strides(shape, a, b)))


def map_(name: str, x: Tensor, dtype: Dtype | None = None) -> Tensor:
    """One kernel, same shape, no history."""
    return x.machine.run(name, (x,), x.shape, dtype or x.dtype, strides=kept_strides(x))


def negative(x: Tensor) -> Tensor:
    return record(map_("neg", x), (x,), lambda node, gradients: (map_("neg", gradients[0]),))


def scale(x: Tensor, name: str = "mul") -> Tensor:
    """Times, or by, a number."""
    return record(map_(name, x), (x,), lambda node, gradients: (map_(name, gradients[0]),))


def shift(x: Tensor) -> Tensor:
    """Plus a number."""
    return record(map_("add", x), (x,), lambda node, gradients: (gradients[0],))


def power(x: Tensor) -> Tensor:
    """x ** 2: grad * (2 * x ** 1). In fp32 under autocast."""
    x = cast_to_float32(x)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        raised = map_("pow", node.take(0))  # C++ keeps temporaries until the whole expression is done
        doubled = map_("mul", raised)
        return (multiply(gradients[0], doubled),)

    return finish(start(x.machine, (x,), back, (x,)), map_("pow", x))


def rsqrt(x: Tensor) -> Tensor:
    """-0.5 * grad * result ** 3."""

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        cubed = map_("pow", node.take(0))
        halved = map_("mul", gradients[0])
        return (multiply(halved, cubed),)

    node = start(x.machine, (x,), back)
    out = map_("rsqrt", x)
    return finish(node, out, out.detached())


def by_result(name: str) -> Any:
    """tanh, sigmoid: the gradient is one kernel on the result."""

    def forward(x: Tensor) -> Tensor:
        node = start(x.machine, (x,), _pair(name + "_backward"))
        out = map_(name, x)
        return finish(node, out, out.detached())

    return forward


def by_input(name: str) -> Any:
    """silu, gelu: the gradient is one kernel on the input."""

    def forward(x: Tensor) -> Tensor:
        return finish(start(x.machine, (x,), _pair(name + "_backward"), (x,)), map_(name, x))

    return forward


def _pair(name: str) -> Any:
    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        return (gradient.machine.run(name, (gradient, kept), kept.shape, gradient.dtype, strides=kept_strides(kept)),)

    return back


tanh, sigmoid = by_result("tanh"), by_result("sigmoid")
silu, gelu, relu = by_input("silu"), by_input("gelu"), by_result("relu")


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    """A number where the mask is set; no gradient flows there."""
    machine, shape = x.machine, broadcast(x.shape, mask.shape)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        return (machine.run("masked_fill", (gradient, node.take(0)), gradient.shape, gradient.dtype),)

    node = start(machine, (x,), back, (mask,))
    return finish(node, machine.run("masked_fill", (x, mask), shape, x.dtype))


def clamp(x: Tensor) -> Tensor:
    """Between two numbers: where((x >= min) and (x <= max), grad, 0)."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        zero = machine.run("scalar_tensor", (), (), gradient.dtype)
        above = map_("ge", kept, BOOL)
        below = map_("le", kept, BOOL)
        out = machine.run("where", (above, gradient, zero), gradient.shape, gradient.dtype)
        del above, below
        return (out,)

    return finish(start(machine, (x,), back, (x,)), map_("clamp", x))


def gelu_new(x: Tensor) -> Tensor:
    """0.5 * x * (1 + tanh(c * (x + 0.044715 * x ** 3))) (transformers/activations.py, `NewGELUActivation`)."""
    return multiply(scale(x), shift(tanh(scale(add(x, scale(power(x)))))))


def gelu_fast(x: Tensor) -> Tensor:
    """0.5 * x * (1 + tanh(x * c * (1 + 0.044715 * x * x))) (`FastGELUActivation`)."""
    return multiply(scale(x), shift(tanh(multiply(scale(x), shift(multiply(scale(x), x))))))


def total(x: Tensor, dims: Sequence[int], keepdim: bool = False, dtype: Dtype | None = None) -> Tensor:
    return reduced("sum", x, dims, keepdim, dtype)


def mean(x: Tensor, dim: int) -> Tensor:
    """Over one dimension, kept: grad.expand / n."""
    shape = x.shape
    out = reduced("mean", x, (dim,), True)
    return record(out, (x,), lambda node, gradients: (map_("div", expand(gradients[0], *shape)),))


def reduced(
    name: str, x: Tensor, dims: Sequence[int], keepdim: bool = False, dtype: Dtype | None = None
) -> Tensor:
    dims = tuple([d % x.dim() for d in dims]) if x.dim() else ()
    shape = tuple([1 if d in dims else size for d, size in enumerate(x.shape) if keepdim or d not in dims])
    kwargs = {"dtype": dtype} if dtype else {}
    return x.machine.run_many(name, (x,), ((shape, dtype or x.dtype),), args=(x, dims, keepdim), kwargs=kwargs)[0]


def cat(parts: Sequence[Tensor], dim: int) -> Tensor:
    dim = dim % parts[0].dim()
    sizes = [part.shape[dim] for part in parts]
    shape = (*parts[0].shape[:dim], sum(sizes), *parts[0].shape[dim + 1 :])

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, start, out = gradients[0], 0, []
        for size in sizes:
            strides = gradient.stride()
            offset = gradient.offset + start * strides[dim]
            out.append(gradient.alias((*shape[:dim], size, *shape[dim + 1 :]), strides, offset))
            start += size
        return out

    dtype = reduce(promoted, [part.dtype for part in parts])
    out = parts[0].machine.run("cat", parts, shape, dtype)
    return record(out, parts, back)


def stack_last(parts: Sequence[Tensor]) -> Tensor:
    """Side by side in a new last dimension; the gradients are views."""
    count = len(parts)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        shape, strides = gradient.shape, gradient.stride()
        return [
            gradient.alias(shape[:-1], strides[:-1], gradient.offset + place * strides[-1])
            for place in range(count)
        ]

    shape = (*parts[0].shape, count)
    return record(parts[0].machine.run("stack", parts, shape, parts[0].dtype), parts, back)


def dropout(x: Tensor, probability: float) -> Tensor:
    """Mask and result; the gradient is one kernel on the mask."""
    if not probability:
        return x
    machine, out_shape = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("native_dropout_backward", (gradients[0], node.take(0)), out_shape, gradients[0].dtype),)

    node = start(machine, (x,), back)
    outs = ((x.shape, x.dtype), (x.shape, BOOL))
    out, mask = machine.run_many("native_dropout", (x,), outs, args=(x, probability, True))
    return finish(node, out, mask)


def pad_last(x: Tensor, more: int) -> Tensor:
    """Zeros behind the last dimension; the gradient is cut off by a copy."""
    machine, before = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("constant_pad_nd", gradients, before, gradients[0].dtype),)

    return record(machine.run("constant_pad_nd", (x,), (*before[:-1], before[-1] + more), x.dtype), (x,), back)


# ------------------------------------------------------------------------------------------------------ products


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """mm: [n, k] x [k, m]."""
    n, k, m = a.shape[0], a.shape[1], b.shape[1]
    shapes = (a.shape, a.stride()), (b.shape, b.stride())

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        second = first = None
        if node.needs[1]:
            second = _mat2_gradient(gradient, node.take(0), shapes[1])
        if node.needs[0]:
            first = _mat1_gradient(gradient, node.take(1), shapes[0])
        return first, second

    node = start(a.machine, (a, b), back, (a if b.requires_grad else None, b if a.requires_grad else None))
    return finish(node, a.machine.run("mm", (a, b), (n, m), a.dtype, 2 * n * k * m, args=(a, b)))


def _flat_t(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


def _mat2_gradient(gradient: Tensor, a: Tensor, b: tuple[Shape, Shape]) -> Tensor:
    """Laid out as the second factor is (FunctionsManual.cpp, `mm_mat2_backward`)."""
    (rows, _), (row_stride, column_stride) = b
    if row_stride == 1 and column_stride == rows:
        return _flat_t(matrix_product(_flat_t(gradient), a))
    return matrix_product(_flat_t(a), gradient)


def _mat1_gradient(gradient: Tensor, b: Tensor, a: tuple[Shape, Shape]) -> Tensor:
    (rows, _), (row_stride, column_stride) = a
    if row_stride == 1 and column_stride == rows:
        return _flat_t(matrix_product(b, _flat_t(gradient)))
    return matrix_product(gradient, _flat_t(b))


def add_matrix_product(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """addmm with a bias of one row."""
    n, k, m = a.shape[0], a.shape[1], b.shape[1]
    machine = a.machine
    shapes = (a.shape, a.stride()), (b.shape, b.stride())

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        first = second = None
        if node.needs[1]:
            first = _mat1_gradient(gradient, node.take(1), shapes[0])
        if node.needs[2]:
            second = _mat2_gradient(gradient, node.take(0), shapes[1])
        return gradient, first, second

    node = start(machine, (bias, a, b), back, (a if b.requires_grad else None, b if a.requires_grad else None))
    return finish(node, machine.run("addmm", (bias, a, b), (n, m), a.dtype, 2 * n * k * m, args=(bias, a, b)))


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """bmm: self.transpose(1, 2) x grad, grad x mat2.transpose(1, 2)."""
    batch, n, k, m = *a.shape, b.shape[2]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        second = first = None
        if node.needs[1]:
            second = batched_product(node.take(0).transpose(1, 2), gradient)
        if node.needs[0]:
            first = batched_product(gradient, node.take(1).transpose(1, 2))
        return first, second

    node = start(a.machine, (a, b), back, (a if b.requires_grad else None, b if a.requires_grad else None))
    return finish(node, a.machine.run("bmm", (a, b), (batch, n, m), a.dtype, 2 * batch * n * k * m, args=(a, b)))


def add_batched_product(addend: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """baddbmm of a constant and a scaled product."""
    batch, n, k, m = *a.shape, b.shape[2]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        first = second = None
        if node.needs[0]:
            first = scale(batched_product(gradient, node.take(1).transpose(1, 2)))
        if node.needs[1]:
            second = scale(batched_product(node.take(0).transpose(1, 2), gradient))
        return first, second

    machine = a.machine
    node = start(machine, (a, b), back, (a if b.requires_grad else None, b if a.requires_grad else None))
    args = (addend, a, b)
    return finish(node, machine.run("baddbmm", args, (batch, n, m), a.dtype, 2 * batch * n * k * m, args=args))


def cast_for_product(x: Tensor) -> Tensor:
    """Autocast's cast to the lower precision; of a trainable leaf in fp32 it is kept (ATen/autocast_mode.cpp,
    `cached_cast`)."""
    machine = x.machine
    dtype = machine.autocast
    if dtype is None or x.dtype == dtype or not x.dtype.floating:
        return x
    if x.dtype == FLOAT32 and x.requires_grad and x.node is None and not x.is_view:
        kept = machine.cast_cache.get(id(x))
        if kept is None:
            kept = machine.cast_cache[id(x)] = (x, to(x, dtype))
        return kept[1]
    return to(x, dtype)


def cast_to_float32(x: Tensor) -> Tensor:
    """Autocast runs some operations in fp32."""
    if x.machine.autocast is not None and x.dtype in (BFLOAT16, FLOAT16):
        return to(x, FLOAT32)
    return x


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """aten/src/ATen/native/Linear.cpp and `matmul`, which folds the leading dimensions."""
    if x.machine.autocast is not None:  # C++ evaluates the last argument first
        bias = cast_for_product(bias) if bias is not None else None
        weight = cast_for_product(weight)
        x = cast_for_product(x)
    if x.dim() == 2:
        if bias is None:
            return matrix_product(x, transpose(weight, 0, 1))
        return add_matrix_product(bias, x, transpose(weight, 0, 1))
    shape = (*x.shape[:-1], weight.shape[0])
    if bias is not None:
        flat = reshape(x, -1, x.shape[-1])
        return view(add_matrix_product(bias, flat, transpose(weight, 0, 1)), *shape)
    return product(x, transpose(weight, 0, 1))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    if a.machine.autocast is not None:
        b = cast_for_product(b)
        a = cast_for_product(a)
    return product(a, b)


def rows_follow_each_other(x: Tensor) -> bool:
    strides = x.stride()
    return x.is_contiguous() or all(strides[d] == strides[d + 1] * x.shape[d + 1] for d in range(x.dim() - 2))


def product(a: Tensor, b: Tensor) -> Tensor:
    """Leading dimensions are flattened; a matrix is multiplied as it is, where flattening the other needs no copy or
    the matrix is trained, else expanded (aten/src/ATen/native/LinearAlgebra.cpp, `_matmul_impl`, `should_fold`)."""
    if b.dim() == 2 and a.dim() > 2 and (b.requires_grad or rows_follow_each_other(a)):
        flat = reshape(a, -1, a.shape[-1])
        return view(matrix_product(flat, b), *a.shape[:-1], b.shape[1])
    leading = broadcast(a.shape[:-2], b.shape[:-2])
    a = expand(a, *leading, *a.shape[-2:])
    b = expand(b, *leading, *b.shape[-2:])
    flat_a, flat_b = reshape(a, -1, *a.shape[-2:]), reshape(b, -1, *b.shape[-2:])
    out = batched_product(flat_a, flat_b)
    return view(out, *leading, a.shape[-2], b.shape[-1])


# --------------------------------------------------------------------------------------- tables, norms and losses


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    rows, width = table.shape
    machine = table.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        args = (gradient, kept, rows, -1, False)
        return (machine.run("embedding_dense_backward", (gradient, kept), (rows, width), gradient.dtype, args=args),)

    node = start(machine, (table,), back, (ids,))
    return finish(node, machine.run("embedding", (table, ids), (*ids.shape, width), table.dtype))


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Result, means, inverse deviations; in fp32 under autocast."""
    machine = x.machine
    bias = cast_to_float32(bias) if bias is not None else None
    weight = cast_to_float32(weight) if weight is not None else None
    x = cast_to_float32(x)
    rows = (*x.shape[:-1], 1)
    normalized = x.shape[-1:]
    inputs = [t for t in (x, weight, bias) if t is not None]
    outs = ((x.shape, x.dtype), (rows, FLOAT32), (rows, FLOAT32))

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        kept, scale_, shift_, mean_, deviation = (node.take(place) for place in range(5))
        wanted = [node.needs[0], node.needs[1], node.needs[2]]
        sources = [t for t in (kept, scale_, shift_) if t is not None]
        made = [
            (t.shape, t.dtype) for t, want in zip((kept, scale_, shift_), wanted, strict=True) if want and t is not None
        ]
        results = machine.run_many(
            "native_layer_norm_backward", (gradient, *sources), made,
            args=(gradient, kept, normalized, mean_, deviation, scale_, shift_, wanted),
        )  # fmt: skip
        given = iter(results)
        return [next(given) if want else None for want in wanted]

    node = start(machine, (x, weight, bias), back, (x, weight, bias))
    out, means, deviations = machine.run_many("native_layer_norm", inputs, outs, args=(x, normalized, weight, bias))
    return finish(node, out, means, deviations)


def softmax(x: Tensor, dtype: Dtype | None = None) -> Tensor:
    """A result asked for in fp32, which is what autocast does, is made from fp16 inside the kernel, and else of a copy
    (aten/src/ATen/native/SoftMax.cpp, `softmax`)."""
    machine, shape = x.machine, x.shape
    kind = dtype or (FLOAT32 if machine.autocast is not None and x.dtype in (FLOAT16, BFLOAT16) else x.dtype)
    converted = x if x.dtype == FLOAT16 and kind == FLOAT32 else to(x, kind)
    before = converted.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        args = (gradient, kept, -1, before)
        return (machine.run("_softmax_backward_data", (gradient, kept), shape, before, args=args),)

    node = start(machine, (converted,), back)
    out = machine.run("_softmax", (converted,), shape, kind)
    return finish(node, out, out.detached())


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """log_softmax, then the mean of the chosen ones."""
    machine = logits.machine
    logits = cast_to_float32(logits)
    shape, dtype = logits.shape, logits.dtype

    def log_back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("_log_softmax_backward_data", (gradients[0], node.take(0)), shape, dtype),)

    node = start(machine, (logits,), log_back)
    log = machine.run("_log_softmax", (logits,), shape, dtype)
    finish(node, log, log.detached())

    def loss_back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = (node.take(0), node.take(1))
        return (machine.run("nll_loss_backward", (gradients[0], *kept), shape, dtype),)

    node = start(machine, (log,), loss_back, (log, labels))
    loss, weight = machine.run_many("nll_loss_forward", (log, labels), (((), dtype), ((), dtype)), args=(log, labels))
    return finish(node, loss, weight)


def safe_softmax(x: Tensor) -> Tensor:
    """Over the last dimension; rows that are masked altogether become 0."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        args = (gradient, kept, -1, dtype)
        return (machine.run("_softmax_backward_data", (gradient, kept), shape, dtype, args=args),)

    node = start(machine, (x,), back)
    out = machine.run("_safe_softmax", (x,), shape, dtype, args=(x, -1))
    return finish(node, out, out.detached())


def add_in_place(x: Tensor, other: Tensor) -> Tensor:
    """x.add_(other): the same memory with a longer history."""
    x.machine.launch("add_", (x, other), x.dtype, x.nbytes)
    return record(x.detached(), (x, other), lambda node, gradients: (gradients[0], gradients[0]))


def scale_in_place(x: Tensor, name: str = "mul") -> Tensor:
    """x.mul_(number), x.div_(number)."""
    x.machine.launch(name + "_", (x,), x.dtype, x.nbytes)
    return record(x.detached(), (x,), lambda node, gradients: (map_(name, gradients[0]),))


def repeat_interleave(x: Tensor, count: int, dim: int) -> Tensor:
    """Each entry of `dim` so often in a row: a copy."""
    shape = (*x.shape[: dim + 1], count, *x.shape[dim + 1 :])
    copied = clone(expand(unsqueeze(x, dim + 1), *shape))
    return view(copied, *x.shape[:dim], x.shape[dim] * count, *x.shape[dim + 1 :])


def integers(machine: Machine, name: str, shape: Shape, dtype: Dtype = INT64, inputs: Sequence[Tensor] = ()) -> Tensor:
    """Positions, ids and masks: made, never differentiated."""
    return machine.run(name, inputs, shape, dtype)
