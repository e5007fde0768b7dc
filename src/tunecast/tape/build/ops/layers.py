"""Embeddings, norms, convolutions, dropout, softmax and losses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, Dtype
from tunecast.tape.build.ops.elementwise import tanh
from tunecast.tape.build.ops.products import cast_for_product
from tunecast.tape.build.ops.views import cast_to_float32, to

if TYPE_CHECKING:
    from tunecast.tape.build.tensor import Tensor


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    rows, width = table.shape
    machine = table.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        args = (gradient, kept, rows, -1, False)
        return (machine.run("embedding_dense_backward", (gradient, kept), (rows, width), gradient.dtype, args=args),)

    node = start(machine, (table,), back, (ids,))
    return finish(node, machine.run("embedding", (table, ids), (*ids.shape, width), table.dtype))


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


def gelu_new(x: Tensor) -> Tensor:
    """0.5 * x * (1 + tanh(c * (x + 0.044715 * x ** 3))) (transformers/activations.py, `NewGELUActivation`)."""
    return 0.5 * x * (1.0 + tanh(0.8 * (x + 0.044715 * x.pow(3.0))))


def gelu_fast(x: Tensor) -> Tensor:
    """0.5 * x * (1 + tanh(x * c * (1 + 0.044715 * x * x))) (`FastGELUActivation`)."""
    return 0.5 * x * (1.0 + tanh(x * 0.8 * (1.0 + 0.044715 * x * x)))


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


def conv1d(given: Tensor, weight: Tensor, bias: Tensor | None = None, padding: int = 0, groups: int = 1) -> Tensor:
    """[B, C, T] and [D, C / groups, K] to [B, D, T + 2 * padding - K + 1]. What was given outlives autocast's copy of
    it."""
    machine, x = given.machine, given
    if machine.autocast is not None:
        bias = cast_for_product(bias) if bias is not None else None
        weight = cast_for_product(weight)
        x = cast_for_product(x)
    batch, _, length = x.shape
    channels, _, width = weight.shape
    shape = (batch, channels, length + 2 * padding - width + 1)
    how = ((1,), (padding,), (1,), False, (0,), groups)
    return convolved(x, weight, bias, shape, how)


def conv_patches(given: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[B, C, ...] by kernels [D, C, ...] that lie side by side, in any number of dimensions."""
    machine, x = given.machine, given
    if machine.autocast is not None:
        bias = cast_for_product(bias) if bias is not None else None
        weight = cast_for_product(weight)
        x = cast_for_product(x)
    channels, _, *kernel = weight.shape
    shape = (x.shape[0], channels, *[size // step for size, step in zip(x.shape[2:], kernel, strict=True)])
    none = (0,) * len(kernel)
    how = (tuple(kernel), none, (1,) * len(kernel), False, none, 1)
    return convolved(x, weight, bias, shape, how)


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[int, ...], how: tuple[Any, ...]) -> Tensor:
    """Input and weight are saved, whichever wants a gradient."""
    machine, channels = x.machine, weight.shape[0]
    flops = 2 * prod(shape) * prod(weight.shape[1:])

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = (node.take(0), node.take(1))
        likes = [*[(t.shape, t.dtype) for t in kept], ((channels,), gradients[0].dtype)]
        made = [like for like, want in zip(likes, node.needs, strict=True) if want]
        args = (gradients[0], *kept, None, *how, node.needs)
        results = iter(machine.run_many("convolution_backward", (gradients[0], *kept), made, 2 * flops, args))
        return [next(results) if want else None for want in node.needs]

    node = start(machine, (x, weight, bias), back, (x, weight))
    taken = [t for t in (x, weight, bias) if t is not None]
    return finish(node, machine.run_many("convolution", taken, ((shape, x.dtype),), flops, (x, weight, bias, *how))[0])


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
    return finish(node, out, out.detach())


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """log_softmax, then the mean of the chosen ones."""
    return negative_log_likelihood(cast_to_float32(logits), labels)


def negative_log_likelihood(
    logits: Tensor, labels: Tensor, kernel: str = "nll_loss", result: tuple[int, ...] = ()
) -> Tensor:
    """In the dtype of the logits; `result` is the shape of the loss: one number, or one a row."""
    machine, shape, dtype = logits.machine, logits.shape, logits.dtype
    log = _log_softmax(logits)

    def loss_back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = (node.take(0), node.take(1))
        return (machine.run(f"{kernel}_backward", (gradients[0], *kept), shape, dtype),)

    node = start(machine, (log,), loss_back, (log, labels))
    outs = ((result, dtype), ((), dtype))
    loss, weight = machine.run_many(f"{kernel}_forward", (log, labels), outs, args=(log, labels))
    return finish(node, loss, weight)


def log_softmax(x: Tensor) -> Tensor:
    """Over the last dimension. In fp32 under autocast."""
    return _log_softmax(cast_to_float32(x))


def _log_softmax(x: Tensor) -> Tensor:
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("_log_softmax_backward_data", (gradients[0], node.take(0)), shape, dtype),)

    node = start(machine, (x,), back)
    out = machine.run("_log_softmax", (x,), shape, dtype)
    return finish(node, out, out.detach())


def logsumexp(x: Tensor, dim: int) -> Tensor:
    """torch/csrc/autograd/FunctionsManual.cpp, `logsumexp_backward`: grad * (x - result).exp()."""
    machine, dtype = x.machine, x.dtype
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        difference = node.take(0) - node.take(1).unsqueeze(dim)
        return (gradients[0].unsqueeze(dim) * difference.exp(),)

    node = start(machine, (x,), back, (x,))
    out = machine.run("logsumexp", (x,), shape, dtype, args=(x, (dim,)))
    return finish(node, out, out.detach())


def safe_softmax(x: Tensor) -> Tensor:
    """Over the last dimension; rows that are masked altogether become 0."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        args = (gradient, kept, -1, dtype)
        return (machine.run("_softmax_backward_data", (gradient, kept), shape, dtype, args=args),)

    node = start(machine, (x,), back)
    out = machine.run("_safe_softmax", (x,), shape, dtype, args=(x, -1))
    return finish(node, out, out.detach())
