"""Sums, means and the other reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.autograd import Gradients, Node, record
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Dtype, Shape
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.ops.views import expand, unsqueeze, view

if TYPE_CHECKING:
    from tunecast.tape.build.tensor import Tensor

Dims = int | Sequence[int] | None


def reduce(name: str, x: Tensor, dims: Dims, keepdim: bool = False, dtype: Dtype | None = None) -> Tensor:
    """Without history. `dims` None: over all."""
    kwargs = {"dtype": dtype} if dtype else {}
    if dims is None:
        return x.machine.run_many(name, (x,), (((), dtype or x.dtype),), args=(x,), kwargs=kwargs)[0]
    dims = (dims,) if isinstance(dims, int) else dims
    dims = tuple([d % x.dim() for d in dims]) if x.dim() else ()
    shape = tuple([1 if d in dims else size for d, size in enumerate(x.shape) if keepdim or d not in dims])
    return x.machine.run_many(name, (x,), ((shape, dtype or x.dtype),), args=(x, dims, keepdim), kwargs=kwargs)[0]


def sum(x: Tensor, dims: Dims = None, keepdim: bool = False, dtype: Dtype | None = None) -> Tensor:
    """Of whole numbers into int64, under autocast into fp32."""
    shape = x.shape
    if dtype is None and not x.dtype.floating:
        dtype = INT64
    elif dtype is None and x.machine.autocast is not None and x.dtype.itemsize <= 4:
        dtype = FLOAT32

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        if isinstance(dims, int) and not keepdim:
            gradient = unsqueeze(gradient, dims)
        return (expand(gradient, *shape),)

    return record(reduce("sum", x, dims, keepdim, dtype), (x,), back)


def mean(x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """grad.expand / n."""
    shape = x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0] if keepdim else unsqueeze(gradients[0], dim)
        return (pointwise("div", expand(gradient, *shape)),)

    return record(reduce("mean", x, dim, keepdim), (x,), back)


def _of_flags(name: str) -> Callable[..., Tensor]:
    def forward(x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
        return reduce(name, x, range(x.dim()) if dims is None else dims, keepdim, BOOL)

    return forward


all, any = _of_flags("all"), _of_flags("any")


def sum_to_size(x: Tensor, shape: Shape) -> Tensor:
    """Sum over what was broadcast (aten/src/ATen/ExpandUtils.h, `sum_to`)."""
    if x.shape == shape:
        return x
    leading = x.dim() - len(shape)
    dims = [*range(leading), *(d for d in range(leading, x.dim()) if shape[d - leading] == 1 and x.shape[d] != 1)]
    if dims:
        x = reduce("sum", x, dims, keepdim=True)
    return view(x, *shape) if leading else x
