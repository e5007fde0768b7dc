"""Element by element, and sums: results laid out as their inputs are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, record, start, wants
from tunecast.tape.build.ops.views import cast_to_float32, kept_strides, view, view_of
from tunecast.tape.build.tensor import BOOL, FLOAT32, Dtype, Shape, Tensor


def expand(x: Tensor, *shape: int) -> Tensor:
    before = x.shape
    new = len(shape) - x.dim()
    sizes = (1,) * new + x.shape
    old = (0,) * new + x.stride()
    triples = zip(sizes, shape, old, strict=True)
    strides = tuple([0 if size == 1 and want != 1 else stride for size, want, stride in triples])
    return view_of(x, tuple(shape), strides, None, lambda node, gradients: (sum_to(gradients[0], before),))


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
            second = multiply(gradient, node.take(1))
        if node.needs[0]:
            first = multiply(gradient, node.take(0))
        return first, second

    node = start(a.machine, (a, b), back, (b if a.requires_grad else None, a if b.requires_grad else None))
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


def reduced(name: str, x: Tensor, dims: Sequence[int], keepdim: bool = False, dtype: Dtype | None = None) -> Tensor:
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
            gradient.alias(shape[:-1], strides[:-1], gradient.offset + place * strides[-1]) for place in range(count)
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
