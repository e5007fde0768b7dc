"""Attention on paper: rotary positions, and the kernels `scaled_dot_product_attention` may take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import ops
from tunecast.tape.build.autograd import Gradients, Node, finish, start, wants
from tunecast.tape.build.tensor import FLOAT32, INT64, Tensor
from tunecast.tape.kernels.backend import Attention, choose


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x * cos + rotate_half(x) * sin."""
    return ops.add(ops.multiply(x, cos), ops.multiply(rotate_half(x), sin))


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    x1 = ops.slice_(x, -1, 0, half)
    x2 = ops.slice_(x, -1, half, x.shape[-1])
    return ops.cat((ops.negative(x2), x1), -1)


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos = ops.unsqueeze(cos, 1)
    sin = ops.unsqueeze(sin, 1)
    q_embed = rotated(q, cos, sin)
    k_embed = rotated(k, cos, sin)
    return q_embed, k_embed


def scaled_dot_product(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0, causal: bool = True,
    gqa: bool = False,
) -> Tensor:  # fmt: skip
    machine = query.machine
    if machine.autocast is not None:
        mask = ops.cast_for_product(mask) if mask is not None else None
        value = ops.cast_for_product(value)
        key = ops.cast_for_product(key)
        query = ops.cast_for_product(query)
    keeps = wants(machine, query, key, value)
    kernel = choose(Attention(query, key, value, mask, dropout, causal, None, gqa, keeps), machine.card)
    run = {"cudnn": cudnn, "flash": flash, "efficient": efficient}[kernel]
    return run(query, key, value, mask, dropout, causal, keeps)


def flops_of(query: Tensor, key: Tensor, value: Tensor) -> int:
    batch, heads, length, width = query.shape
    return 2 * batch * heads * length * key.shape[2] * (width + value.shape[3])


def interleaved(query: Tensor, width: int) -> Any:
    """[batch, heads, length, width] laid out [batch, length, heads, width]."""
    _, heads, length, _ = query.shape
    return (length * heads * width, width, heads * width, 1)


def cudnn(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, keeps: bool
) -> Tensor:
    batch, heads, length, _ = query.shape
    width = value.shape[3]
    out = (batch, heads, length, width)
    outs = ((out, query.dtype), ((batch, heads, length, 1), FLOAT32), ((), INT64), ((), INT64))
    flops = flops_of(query, key, value)
    args = (query, key, value, mask, keeps, dropout, causal, False)
    return _run("_scaled_dot_product_cudnn_attention", query, key, value, mask, outs, flops, args, dropout)


def flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, keeps: bool
) -> Tensor:
    batch, heads, length, _ = query.shape
    outs = ((query.shape, query.dtype), ((batch, heads, length), FLOAT32), ((2,), INT64), ((), INT64))
    flops = flops_of(query, key, value)
    args = (query, key, value, dropout, causal)
    return _run("_scaled_dot_product_flash_attention", query, key, value, None, outs, flops, args, dropout)


def efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, keeps: bool
) -> Tensor:
    batch, heads, length, _ = query.shape
    rows = -(-length // 32) * 32
    outs = (((batch, heads, length, value.shape[3]), query.dtype), ((batch, heads, rows), FLOAT32))
    flops = flops_of(query, key, value)
    args = (query, key, value, mask, keeps, dropout, causal)
    return _run("_scaled_dot_product_efficient_attention", query, key, value, mask, outs, flops, args, dropout)


def _run(
    name: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, outs: Sequence[Any], flops: int,
    args: tuple[Any, ...], dropout: float,
) -> Tensor:  # fmt: skip
    machine = query.machine
    likes = [(t.shape, t.dtype) for t in (query, key, value)]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, v, _, kept_out = (node.take(place) for place in range(5))
        for place in range(5, len(node.saved)):
            node.take(place)
        arguments = (gradients[0], q, k, v, kept_out, None, None, None, None, dropout)
        made = machine.run_many(name + "_backward", (gradients[0], q, k, v), likes, flops * 5 // 2, arguments)
        for gradient, like in zip(made, (q, k, v), strict=True):
            gradient.strides = interleaved(like, like.shape[3])
        return made

    node = start(machine, (query, key, value), back, (query, key, value, mask))
    results = machine.run_many(name, (query, key, value), outs, flops, args)
    out = results[0]
    out.strides = interleaved(query, out.shape[3])
    return finish(node, out, out.detached(), *[t for t in results[1:] if t is not None])
