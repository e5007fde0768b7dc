"""Element by element: results laid out as their inputs are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.autograd import Gradients, Node, finish, record, start, wants
from tunecast.tape.build.dtypes import BOOL, FLOAT32, Dtype, Shape, broadcast, contiguous_strides, promote
from tunecast.tape.build.ops.views import cast_to_float32, clone, joined_strides, kept_strides

if TYPE_CHECKING:
    from tunecast.tape.build.tensor import Tensor

Unary = Callable[["Tensor"], "Tensor"]
NUMBER = (float, int)


def elementwise_strides(shape: Shape, *inputs: Tensor) -> Shape | None:
    """Of a result: packed, its dimensions in the order the inputs have them (aten/src/ATen/TensorIterator.cpp,
    `reorder_dimensions`)."""
    first = next((x for x in inputs if x.shape == shape), None)
    if first is None or first.strides is None or first.is_contiguous():
        return None
    spread = [_spread_strides(x, shape) for x in inputs]
    order = list(reversed(range(len(shape))))
    for place in range(1, len(order)):
        later = place
        for earlier in range(place - 1, -1, -1):
            compared = _compared(order[earlier], order[later], shape, spread)
            if compared < 0:
                break
            if compared > 0:
                order[earlier], order[later] = order[later], order[earlier]
                later = earlier
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    packed = tuple(strides)
    return None if packed == contiguous_strides(shape) else packed


def _spread_strides(x: Tensor, shape: Shape) -> Shape:
    """0 where it is broadcast."""
    new = len(shape) - x.dim()
    steps = zip(x.shape, shape[new:], x.stride(), strict=True)
    return (0,) * new + tuple([0 if size == 1 != want else step for size, want, step in steps])


def _compared(first: int, second: int, shape: Shape, spread: Sequence[Shape]) -> int:
    """Above 0 where the two dimensions must change places, 0 where no input tells."""
    for strides in spread:
        one, other = strides[first], strides[second]
        if one and other:
            if one != other:
                return -1 if one < other else 1
            if shape[first] > shape[second]:
                return 1
    return 0


def pointwise(name: str, x: Tensor, dtype: Dtype | None = None) -> Tensor:
    """One kernel on one tensor, with a result of the same shape and no history."""
    return x.machine.run(name, (x,), x.shape, dtype or x.dtype, strides=kept_strides(x))


def _binary(name: str, a: Tensor, b: Tensor) -> Tensor:
    shape = broadcast(a.shape, b.shape)
    return a.machine.run(name, (a, b), shape, _result_dtype(a, b), strides=elementwise_strides(shape, a, b))


def _result_dtype(a: Tensor, b: Tensor) -> Dtype:
    """A floating number on the card widens no floating tensor (aten/src/ATen/native/TypeProperties.cpp,
    `result_type`)."""
    if a.dtype.floating and b.dtype.floating and bool(a.shape) != bool(b.shape):
        return a.dtype if a.shape else b.dtype
    return promote(a.dtype, b.dtype)


def _by_number(name: str, x: Tensor) -> Tensor:
    """Times a number, or divided by one: the gradient as well."""
    return record(pointwise(name, x), (x,), lambda node, gradients: (pointwise(name, gradients[0]),))


def _plus_number(name: str, x: Tensor) -> Tensor:
    return record(pointwise(name, x), (x,), lambda node, gradients: (gradients[0],))


def add(a: Tensor, b: Tensor | float) -> Tensor:
    if isinstance(b, NUMBER):
        return _plus_number("add", a)
    return record(_binary("add", a, b), (a, b), lambda node, gradients: (gradients[0], gradients[0]))


def sub(a: Tensor, b: Tensor | float) -> Tensor:
    if isinstance(b, NUMBER):
        return _plus_number("sub", a)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return gradients[0], pointwise("neg", gradients[0]) if node.needs[1] else None

    return record(_binary("sub", a, b), (a, b), back)


def rsub(x: Tensor, number: float) -> Tensor:
    """number - x."""
    return record(pointwise("rsub", x), (x,), lambda node, gradients: (pointwise("neg", gradients[0]),))


def mul(a: Tensor, b: Tensor | float) -> Tensor:
    if isinstance(b, NUMBER):
        return _by_number("mul", a)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        second = first = None
        if node.needs[1]:
            second = mul(gradient, node.take(1))
        if node.needs[0]:
            first = mul(gradient, node.take(0))
        return first, second

    node = start(a.machine, (a, b), back, (b if a.requires_grad else None, a if b.requires_grad else None))
    return finish(node, _binary("mul", a, b))


def div(a: Tensor, b: Tensor | float) -> Tensor:
    """A whole number on the card, such as a count, wants no gradient and is saved all the same."""
    if isinstance(b, NUMBER):
        return _by_number("div", a)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        second = first = None
        if node.needs[1]:  # -grad * ((self / other) / other)
            minus = pointwise("neg", gradient)
            once = div(node.take(0), node.take(1))
            twice = div(once, node.take(1))
            second = mul(minus, twice)
            del minus, once, twice
        if node.needs[0]:
            first = div(gradient, node.take(1))
        return first, second

    node = start(a.machine, (a, b), back, (a if b.requires_grad else None, b if wants(a.machine, a, b) else None))
    return finish(node, _binary("div", a, b))


def rdiv(x: Tensor, number: float) -> Tensor:
    """number / x: two kernels (torch/_tensor.py, `__rtruediv__`)."""
    return pointwise("mul", reciprocal(x))


def reciprocal(x: Tensor) -> Tensor:
    return pointwise("reciprocal", x, x.dtype if x.dtype.floating else FLOAT32)


def neg(x: Tensor) -> Tensor:
    return record(pointwise("neg", x), (x,), lambda node, gradients: (pointwise("neg", gradients[0]),))


def pow(x: Tensor, exponent: float) -> Tensor:
    """grad * (exponent * x ** (exponent - 1)). In fp32 under autocast."""
    x = cast_to_float32(x)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        raised = pointwise("pow", node.take(0))  # C++ keeps temporaries until the whole expression is done
        multiplied = pointwise("mul", raised)
        return (mul(gradients[0], multiplied),)

    return finish(start(x.machine, (x,), back, (x,)), pointwise("pow", x))


def rsqrt(x: Tensor) -> Tensor:
    """-0.5 * grad * result ** 3."""

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        cubed = pointwise("pow", node.take(0))
        halved = pointwise("mul", gradients[0])
        return (mul(halved, cubed),)

    node = start(x.machine, (x,), back)
    out = pointwise("rsqrt", x)
    return finish(node, out, out.detach())


# ------------------------------------------------------------------------------------------------- functions of one


def _saves_result(name: str) -> Unary:
    """The gradient is one kernel on the result."""

    def forward(x: Tensor) -> Tensor:
        node = start(x.machine, (x,), _backward_kernel(name + "_backward"))
        out = pointwise(name, x)
        return finish(node, out, out.detach())

    return forward


def _saves_input(name: str) -> Unary:
    """The gradient is one kernel on the input."""

    def forward(x: Tensor) -> Tensor:
        return finish(start(x.machine, (x,), _backward_kernel(name + "_backward"), (x,)), pointwise(name, x))

    return forward


def _backward_kernel(name: str) -> Any:
    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        strides = elementwise_strides(kept.shape, gradient, kept)
        return (gradient.machine.run(name, (gradient, kept), kept.shape, gradient.dtype, strides=strides),)

    return back


tanh, sigmoid, relu = _saves_result("tanh"), _saves_result("sigmoid"), _saves_result("relu")
silu, gelu = _saves_input("silu"), _saves_input("gelu")
logsigmoid = _saves_input("log_sigmoid")
"""Its buffer is of no elements on a card (aten/src/ATen/native/cuda/ActivationLogSigmoidKernel.cu,
`launch_log_sigmoid_forward_kernel`)."""


def softplus(x: Tensor) -> Tensor:
    """In fp32 under autocast."""
    return _softplus(cast_to_float32(x))


_softplus = _saves_input("softplus")


def exp(x: Tensor) -> Tensor:
    """grad * result. In fp32 under autocast."""
    x = cast_to_float32(x)
    node = start(x.machine, (x,), lambda node, gradients: (mul(gradients[0], node.take(0)),))
    out = pointwise("exp", x)
    return out if node is None else finish(node, out, out.detach())


def log(x: Tensor) -> Tensor:
    """grad / x. In fp32 under autocast."""
    x = cast_to_float32(x)
    node = start(x.machine, (x,), lambda node, gradients: (div(gradients[0], node.take(0)),), (x,))
    return finish(node, pointwise("log", x))


def sqrt(x: Tensor) -> Tensor:
    """grad / (2 * result)."""

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        doubled = pointwise("mul", node.take(0))
        return (div(gradients[0], doubled),)

    node = start(x.machine, (x,), back)
    out = pointwise("sqrt", x)
    return out if node is None else finish(node, out, out.detach())


def where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Gradients are zeros where the other was taken."""
    machine = condition.machine
    shape = broadcast(condition.shape, broadcast(a.shape, b.shape))

    def chosen(node: Node, gradient: Tensor) -> Tensor:
        zero = machine.run("scalar_tensor", (), (), gradient.dtype)
        return machine.run("where", (node.take(0), gradient, zero), gradient.shape, gradient.dtype)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        second = chosen(node, gradients[0]) if node.needs[1] else None
        first = chosen(node, gradients[0]) if node.needs[0] else None
        return first, second

    node = start(machine, (a, b), back, (condition,))
    return finish(node, machine.run("where", (condition, a, b), shape, promote(a.dtype, b.dtype)))


def _without_gradient(name: str) -> Unary:
    """Of positions, masks and optimizer states, which nobody differentiates."""

    def forward(x: Tensor) -> Tensor:
        return pointwise(name, x)

    return forward


absolute = _without_gradient("abs")
cos, sin = _without_gradient("cos"), _without_gradient("sin")


def _comparison(name: str) -> Callable[[Tensor, Any], Tensor]:
    """With a number, or with a tensor of a shape it is broadcast with."""

    def forward(x: Tensor, other: Tensor | float) -> Tensor:
        if isinstance(other, NUMBER):
            return pointwise(name, x, BOOL)
        return x.machine.run(name, (x, other), broadcast(x.shape, other.shape), BOOL)

    return forward


eq, ne, ge = _comparison("eq"), _comparison("ne"), _comparison("ge")
gt, le, lt = _comparison("gt"), _comparison("le"), _comparison("lt")


def _of_flags(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a.machine.run(name, (a, b), broadcast(a.shape, b.shape), BOOL)

    return forward


bitwise_and, bitwise_or = _of_flags("bitwise_and"), _of_flags("bitwise_or")


bitwise_not = _without_gradient("bitwise_not")


def floor_divide(x: Tensor, number: float) -> Tensor:
    return pointwise("floor_divide", x)


def clamp(x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    """Between two numbers: where((x >= low) and (x <= high), grad, 0)."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        zero = machine.run("scalar_tensor", (), (), gradient.dtype)
        above = ge(kept, 0)
        below = le(kept, 0)
        out = machine.run("where", (above, gradient, zero), gradient.shape, gradient.dtype)
        del above, below
        return (out,)

    return finish(start(machine, (x,), back, (x,)), pointwise("clamp", x))


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """Half of the gradient each where both are alike, else all of it to the smaller (derivatives.yaml)."""
    machine, shape, dtype = a.machine, broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)

    def part(node: Node, gradient: Tensor, name: str) -> Tensor:
        a, b = node.take(0), node.take(1)
        alike, half = eq(a, b), pointwise("div", gradient)
        out = machine.run("where", (alike, half, gradient), gradient.shape, gradient.dtype)
        machine.launch("masked_fill_", (out, machine.run(name, (a, b), shape, BOOL)), out.dtype, out.nbytes)
        return out

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        second = part(node, gradients[0], "lt") if node.needs[1] else None
        first = part(node, gradients[0], "gt") if node.needs[0] else None
        return first, second

    node = start(machine, (a, b), back, (a, b))
    return finish(node, machine.run("minimum", (a, b), shape, dtype))


def masked_fill(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """A number where the mask is set; no gradient flows there."""
    machine, shape = x.machine, broadcast(x.shape, mask.shape)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        return (machine.run("masked_fill", (gradient, node.take(0)), gradient.shape, gradient.dtype),)

    node = start(machine, (x,), back, (mask,))
    return finish(node, machine.run("masked_fill", (x, mask), shape, x.dtype))


# --------------------------------------------------------------------------------------------------------- in place


def add_(x: Tensor, other: Tensor | float) -> Tensor:
    """The same memory with a longer history."""
    if isinstance(other, NUMBER):
        x.machine.launch("add_", (x,), x.dtype, x.nbytes)
        return record(x.detach(), (x,), lambda node, gradients: (gradients[0],))
    x.machine.launch("add_", (x, other), x.dtype, x.nbytes)
    return record(x.detach(), (x, other), lambda node, gradients: (gradients[0], gradients[0]))


def mul_(x: Tensor, other: Tensor | float) -> Tensor:
    """A tensor that wants no gradient is saved all the same."""
    if isinstance(other, NUMBER):
        x.machine.launch("mul_", (x,), x.dtype, x.nbytes)
        return record(x.detach(), (x,), lambda node, gradients: (pointwise("mul", gradients[0]),))
    assert not other.requires_grad, "what `x` was would have to be kept"
    node = start(x.machine, (x,), lambda node, gradients: (mul(gradients[0], node.take(0)),), (other,))
    x.machine.launch("mul_", (x, other), x.dtype, x.nbytes)
    return finish(node, x.alias(x.shape, x.strides))


def div_(a: Tensor, b: Tensor | float) -> Tensor:
    """What `a` was is copied when `b` wants a gradient."""
    machine = a.machine
    if isinstance(b, NUMBER):
        machine.launch("div_", (a,), a.dtype, a.nbytes)
        return record(a.detach(), (a,), lambda node, gradients: (pointwise("div", gradients[0]),))

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        second = first = None
        if node.needs[1]:
            once = div(node.take(0), node.take(1))
            twice = div(once, node.take(1))
            minus = pointwise("neg", gradient)
            second = mul(minus, twice)
            del once, twice, minus
        if node.needs[0]:
            first = div(gradient, node.take(1))
        return first, second

    before = None
    if wants(machine, b):
        with machine.no_grad():
            before = clone(a)
    node = start(machine, (a, b), back, (before, b))
    machine.launch("div_", (a, b), a.dtype, a.nbytes)
    return finish(node, a.alias(a.shape, a.strides))


# ----------------------------------------------------------------------------------------------------- side by side


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

    dtype = reduce(promote, [part.dtype for part in parts])
    out = parts[0].machine.run("cat", parts, shape, dtype, strides=joined_strides(parts, shape))
    return record(out, parts, back)


def stack(parts: Sequence[Tensor], dim: int) -> Tensor:
    """In a new dimension; the gradients are views."""
    count, place = len(parts), dim % (parts[0].dim() + 1)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        strides = gradient.stride()
        shape, others = (tuple([*of[:place], *of[place + 1 :]]) for of in (gradient.shape, strides))
        return [
            gradient.alias(shape, others, gradient.offset + number * strides[place]) if wanted else None
            for number, wanted in enumerate(node.needs)
        ]

    shape = (*parts[0].shape[:place], count, *parts[0].shape[place:])
    return record(parts[0].machine.run("stack", parts, shape, parts[0].dtype), parts, back)


def pad(x: Tensor, more: int, dim: int = -1) -> Tensor:
    """Zeros behind the last dimension, or another; the gradient is cut off by a copy. A copy of as much, or of less,
    is laid out as the original (aten/src/ATen/native/PadNd.cpp, `constant_pad_nd`)."""
    machine, before, dim = x.machine, x.shape, dim % x.dim()
    shape = (*before[:dim], before[dim] + more, *before[dim + 1 :])

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        strides = kept_strides(gradient.alias(before, gradient.strides and gradient.stride()))
        return (machine.run("constant_pad_nd", gradients, before, gradient.dtype, strides=strides),)

    strides = None if more else kept_strides(x)
    return record(machine.run("constant_pad_nd", (x,), shape, x.dtype, strides=strides), (x,), back)
