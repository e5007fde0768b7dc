"""What layers with a running state use: cumulative sums, triangles, contractions, parts written in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.dtypes import Shape, contiguous_strides
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.ops.products import bmm, cast_for_product, matmul
from tunecast.tape.build.ops.views import (
    cast_to_float32,
    permute,
    reshape,
    to,
    transpose,
    unsqueeze,
    view,
)

if TYPE_CHECKING:
    from tunecast.tape.build.tensor import Tensor


def cumsum(x: Tensor, dim: int) -> Tensor:
    """grad.flip(dim).cumsum(dim).flip(dim) (FunctionsManual.cpp, `cumsum_backward`). In fp32 under autocast."""
    x = cast_to_float32(x)
    machine, dim = x.machine, dim % x.dim()

    def run(x: Tensor) -> Tensor:
        return machine.run("cumsum", (x,), x.shape, x.dtype, args=(x, dim))

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        if gradient.shape[dim] == 1:
            return (gradient,)
        flipped = pointwise("flip", gradient)  # C++ keeps temporaries until the whole expression is done
        summed = run(flipped)
        return (pointwise("flip", summed),)

    return record(run(x), (x,), back)


def by_columns(shape: Shape) -> Shape:
    """The strides of matrices one column behind the other, as LAPACK wants them."""
    strides = contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
    return (*strides[:-2], strides[-1], strides[-2])


def solve_triangular(a: Tensor, b: Tensor) -> Tensor:
    """`linalg.solve_triangular(a, b, upper=False, unitriangular=True)`: a result by columns; the gradient solves with
    the matrix turned around, and is multiplied by the result (FunctionsManual.cpp,
    `linalg_solve_triangular_backward`)."""
    machine, size = a.machine, a.shape[-1]

    def run(a: Tensor, b: Tensor) -> Tensor:
        args = (a, b)
        out = machine.run("linalg_solve_triangular", args, b.shape, b.dtype, b.numel() * size, args=args)
        out.strides = by_columns(out.shape)
        return out

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        solved = run(transpose(node.take(0), -1, -2), gradients[0])
        if not node.needs[0]:
            return None, solved
        product = matmul(solved, transpose(node.take(1), -1, -2))
        matrix = pointwise("neg", product)
        del product
        matrix = machine.run("tril", (matrix,), matrix.shape, matrix.dtype)
        return matrix, solved if node.needs[1] else None

    node = start(machine, (a, b), back, (a,))
    out = run(a, b)
    return finish(node, out, out.detach())


def einsum(equation: str, a: Tensor, b: Tensor) -> Tensor:
    """Of two tensors: dimensions in the order of the result, those summed over last; one batch of matrix products,
    turned around where the second's own come first in the result (aten/src/ATen/native/Linear.cpp, `einsum`,
    `sumproduct_pair`)."""
    a = cast_for_product(a)
    b = cast_for_product(b)
    given, out = equation.split("->")
    left, right = given.split(",")
    summed = "".join(sorted(set(left + right) - set(out)))
    labels = out + summed
    sizes = {**dict(zip(left, a.shape, strict=True)), **dict(zip(right, b.shape, strict=True))}
    a, b = spread(a, left, labels), spread(b, right, labels)
    wide = [(a.shape[place] != 1, b.shape[place] != 1) for place in range(len(labels))]
    places = range(len(out))
    both = [place for place in places if wide[place] == (True, True)]
    first = [place for place in places if wide[place] == (True, False)]
    second = [place for place in places if not wide[place][0]]
    inner = list(range(len(out), len(labels)))
    if first and second and second[-1] < first[0]:
        a, b, first, second = b, a, second, first
    batch, rows, columns, depth = (prod([sizes[labels[p]] for p in part]) for part in (both, first, second, inner))
    left_matrices = permute(a, *both, *first, *inner, *second)
    right_matrices = permute(b, *both, *inner, *second, *first)
    product = bmm(reshape(left_matrices, batch, rows, depth), reshape(right_matrices, batch, depth, columns))
    order = [*both, *first, *second]
    whole = view(product, *[sizes[labels[place]] for place in order])
    return permute(whole, *[order.index(place) for place in places])


def spread(x: Tensor, have: str, labels: str) -> Tensor:
    """All labels' dimensions in their order, of size 1 where it has none."""
    x = permute(x, *[have.index(label) for label in labels if label in have])
    for place, label in enumerate(labels):
        if label not in have:
            x = unsqueeze(x, place)
    return x


def assign(base: Tensor, part: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """part(base) = value: the same memory with a longer history. The gradient is copied, its part taken out and, where
    the rest is still wanted, overwritten with zeros (torch/csrc/autograd/functions/tensor.cpp, `CopySlices`, around
    `CopyBackwards`)."""
    machine, dtype, base_like = base.machine, value.dtype, (base.shape, base.strides)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        result, view, piece = _taken_out(base_like, part, gradients[0])
        if node.needs[0]:
            zeros = machine.run("zeros_like", (piece,), piece.shape, piece.dtype)
            given = to(piece, dtype)
            machine.launch("copy_", (view, zeros), zeros.dtype, zeros.nbytes)
            return result, given
        return None, to(piece, dtype)

    machine.launch("copy_", (value,), base.dtype, value.nbytes)
    return record(base.alias(base.shape, base.strides), (base, value), back)


def add_to_part(base: Tensor, part: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """part(base) += value, in the same way."""
    base_like = base.shape, base.strides

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        result, _, piece = _taken_out(base_like, part, gradients[0])
        return result, piece

    base.machine.launch("add_", (base, value), base.dtype, value.nbytes)
    out = record(base.alias(base.shape, base.strides), (base, value), back)
    out.is_view = False
    return out


def scale_part(base: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    """part(base) *= number, in the same way: the gradient's part is scaled apart and put back."""
    machine, base_like = base.machine, (base.shape, base.strides)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        result, view, piece = _taken_out(base_like, part, gradients[0])
        scaled = machine.run("mul", (piece,), piece.shape, piece.dtype)
        machine.launch("copy_", (view, scaled), scaled.dtype, scaled.nbytes)
        return (result,)

    machine.launch("mul_", (base,), base.dtype, base.nbytes)
    out = record(base.alias(base.shape, base.strides), (base,), back)
    out.is_view = False
    return out


def _taken_out(
    base_like: tuple[Shape, Shape | None], part: Callable[[Tensor], Tensor], gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A copy of the gradient, its part, and a copy of that."""
    machine, (shape, strides) = gradient.machine, base_like
    result = machine.run("new_empty_strided", (gradient,), shape, gradient.dtype, strides=strides)
    machine.launch("copy_", (result, gradient), result.dtype, result.nbytes)
    view = part(result)
    return result, view, machine.run("clone", (view,), view.shape, view.dtype)
