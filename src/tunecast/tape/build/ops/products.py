"""Matrix products, and what autocast casts before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, Shape, broadcast
from tunecast.tape.build.ops.elementwise import add_, pointwise
from tunecast.tape.build.ops.views import expand, reshape, t, to, transpose, view

if TYPE_CHECKING:
    from tunecast.tape.build.tensor import Tensor


def _mm(a: Tensor, b: Tensor) -> Tensor:
    """[n, k] x [k, m]."""
    n, k, m = a.shape[0], a.shape[1], b.shape[1]
    shapes = (a.shape, a.stride()), (b.shape, b.stride())

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        second = first = None
        if node.needs[1]:
            second = _mat2_gradient(gradient, node.take(1), shapes[1])
        if node.needs[0]:
            first = _mat1_gradient(gradient, node.take(0), shapes[0])
        return first, second

    node = start(a.machine, (a, b), back, (b if a.requires_grad else None, a if b.requires_grad else None))
    return finish(node, a.machine.run("mm", (a, b), (n, m), a.dtype, 2 * n * k * m, args=(a, b)))


def _mat2_gradient(gradient: Tensor, a: Tensor, b: tuple[Shape, Shape]) -> Tensor:
    """Laid out as the second factor is (FunctionsManual.cpp, `mm_mat2_backward`)."""
    (rows, _), (row_stride, column_stride) = b
    if row_stride == 1 and column_stride == rows:
        return t(_mm(t(gradient), a))
    return _mm(t(a), gradient)


def _mat1_gradient(gradient: Tensor, b: Tensor, a: tuple[Shape, Shape]) -> Tensor:
    (rows, _), (row_stride, column_stride) = a
    if row_stride == 1 and column_stride == rows:
        return t(_mm(b, t(gradient)))
    return _mm(gradient, t(b))


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """With a bias of one row."""
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


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """self.transpose(1, 2) x grad, grad x mat2.transpose(1, 2)."""
    batch, n, k, m = *a.shape, b.shape[2]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        second = first = None
        if node.needs[1]:
            second = _bmm(transpose(node.take(0), 1, 2), gradient)
        if node.needs[0]:
            first = _bmm(gradient, transpose(node.take(1), 1, 2))
        return first, second

    node = start(a.machine, (a, b), back, (a if b.requires_grad else None, b if a.requires_grad else None))
    return finish(node, a.machine.run("bmm", (a, b), (batch, n, m), a.dtype, 2 * batch * n * k * m, args=(a, b)))


def _baddbmm(addend: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Of a constant and a product times a number."""
    batch, n, k, m = *a.shape, b.shape[2]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        first = second = None
        if node.needs[0]:
            first = _bmm(gradient, transpose(node.take(1), 1, 2))
            first = first if alpha == 1 else pointwise("mul", first)
        if node.needs[1]:
            second = _bmm(transpose(node.take(0), 1, 2), gradient)
            second = second if alpha == 1 else pointwise("mul", second)
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


def mm(a: Tensor, b: Tensor) -> Tensor:
    b = cast_for_product(b)
    a = cast_for_product(a)
    return _mm(a, b)


def addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    b = cast_for_product(b)
    a = cast_for_product(a)
    bias = cast_for_product(bias)
    return _addmm(bias, a, b)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    b = cast_for_product(b)
    a = cast_for_product(a)
    return _bmm(a, b)


def baddbmm(addend: Tensor, a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
    b = cast_for_product(b)
    a = cast_for_product(a)
    addend = cast_for_product(addend)
    return _baddbmm(addend, a, b, alpha)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """aten/src/ATen/native/Linear.cpp and `matmul`, which folds the leading dimensions."""
    if x.machine.own_linear is not None:
        return x.machine.own_linear(x, weight, bias)
    if x.machine.autocast is not None:  # C++ evaluates the last argument first
        bias = cast_for_product(bias) if bias is not None else None
        weight = cast_for_product(weight)
        x = cast_for_product(x)
    if x.dim() == 2:
        if bias is None:
            return _mm(x, t(weight))
        return _addmm(bias, x, t(weight))
    shape = (*x.shape[:-1], weight.shape[0])
    if bias is not None and not x.is_contiguous():
        return add_(_matmul(x, t(weight)), bias)
    if bias is not None:
        flat = reshape(x, -1, x.shape[-1])
        return view(_addmm(bias, flat, t(weight)), *shape)
    return _matmul(x, t(weight))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    if a.machine.autocast is not None:
        b = cast_for_product(b)
        a = cast_for_product(a)
    return _matmul(a, b)


def rows_follow_each_other(x: Tensor) -> bool:
    if x.is_contiguous():
        return True
    strides = x.stride()
    return all(strides[d] == strides[d + 1] * x.shape[d + 1] for d in range(x.dim() - 2))


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Leading dimensions are flattened; a matrix is multiplied as it is, where flattening the other needs no copy or
    the matrix is trained, else expanded (aten/src/ATen/native/LinearAlgebra.cpp, `_matmul_impl`, `should_fold`)."""
    if a.dim() == 2 and b.dim() == 2:
        return _mm(a, b)
    if b.dim() == 2 and a.dim() > 2 and (b.requires_grad or rows_follow_each_other(a)):
        flat = reshape(a, -1, a.shape[-1])
        return view(_mm(flat, b), *a.shape[:-1], b.shape[1])
    leading = broadcast(a.shape[:-2], b.shape[:-2])
    a = expand(a, *leading, *a.shape[-2:])
    b = expand(b, *leading, *b.shape[-2:])
    flat_a, flat_b = reshape(a, -1, *a.shape[-2:]), reshape(b, -1, *b.shape[-2:])
    out = _bmm(flat_a, flat_b)
    return view(out, *leading, a.shape[-2], b.shape[-1])
