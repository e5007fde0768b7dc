"""What towers of vision and the models around them compute besides: patches, pools, and features put among tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.ops.layers import convolved
from tunecast.tape.build.ops.products import cast_for_product

if TYPE_CHECKING:
    from tunecast.tape.build.tensor import Tensor


def conv2d(given: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int = 0) -> Tensor:
    """[B, C, H, W] and [D, C, K, K] to [B, D, (H + 2 padding - K) / stride + 1, ...]. Input and weight are saved,
    whichever wants a gradient; what was given outlives autocast's copy of it."""
    machine, x = given.machine, given
    if machine.autocast is not None:
        bias = cast_for_product(bias) if bias is not None else None
        weight = cast_for_product(weight)
        x = cast_for_product(x)
    batch, _, height, width = x.shape
    channels, _, tall, wide = weight.shape
    rows, columns = (height + 2 * padding - tall) // stride + 1, (width + 2 * padding - wide) // stride + 1
    shape = (batch, channels, rows, columns)
    how = ((stride, stride), (padding, padding), (1, 1), False, (0, 0), 1)
    return convolved(x, weight, bias, shape, how)


def avg_pool2d(x: Tensor, kernel: int) -> Tensor:
    """Squares that do not overlap; the input is saved for its shape."""
    machine, before = x.machine, x.shape
    batch, channels, height, width = before

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = node.take(0)
        return (machine.run("avg_pool2d_backward", (gradients[0], kept), before, gradients[0].dtype),)

    node = start(machine, (x,), back, (x,))
    shape = (batch, channels, height // kernel, width // kernel)
    return finish(node, machine.run("avg_pool2d", (x,), shape, x.dtype))


def unfold(x: Tensor, kernel: int) -> Tensor:
    """`torch.nn.functional.unfold` with strides of its own size: [B, C, H, W] to [B, C K K, H W / K / K]."""
    machine, before = x.machine, x.shape
    batch, channels, height, width = before

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("col2im", gradients, before, gradients[0].dtype, args=(gradients[0],)),)

    node = start(machine, (x,), back)
    shape = (batch, channels * kernel * kernel, (height // kernel) * (width // kernel))
    return finish(node, machine.run("im2col", (x,), shape, x.dtype, args=(x,)))


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`x.masked_scatter(mask, source)`: a copy in which features stand where the mask says. It saves the mask alone."""
    machine, shape, dtype = x.machine, source.shape, source.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        of_x = of_source = None
        if node.needs[0]:
            of_x = machine.run("masked_fill", (gradient, kept), gradient.shape, gradient.dtype)
        if node.needs[1]:
            args = (gradient, kept, shape)
            of_source = machine.run("masked_scatter_backward", (gradient, kept), shape, dtype, args=args)
        return of_x, of_source

    node = start(machine, (x, source), back, (mask,))
    args = (x, mask, source)
    return finish(node, machine.run("masked_scatter", args, x.shape, x.dtype, args=args))
