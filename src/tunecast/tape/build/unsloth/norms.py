"""Norms and rotary positions (unsloth/kernels/rms_layernorm.py, rope_embedding.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.compiler.record import Tracer
from tunecast.tape.build.dtypes import FLOAT32, INT32
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.unsloth.fast_lora import several


def rms_norm(x: Tensor, weight: Tensor, reuse_grad: bool, gemma: bool = False) -> Tensor:
    """`Fast_RMS_Layernorm`: where nobody else reads it, the gradient that came in is written over."""
    machine, shape = x.machine, x.shape
    if machine.graph is not None:
        return compiled_norm(machine.graph, x)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        dy = gradients[0].reshape(-1, shape[-1]).contiguous()
        x, _, _ = (node.take(place) for place in range(3))
        dx = dy if reuse_grad and not gemma else machine.run("empty_like", (dy,), dy.shape, dy.dtype)
        machine.launch("triton::_rms_layernorm_backward", (dy, dx, x), dy.dtype, dx.nbytes)
        return dx.alias(shape, None), None

    node = start(machine, (x, weight), back)
    with machine.no_grad():
        flat = x.reshape(-1, shape[-1]).contiguous()
        y = machine.run("empty", (), flat.shape, x.dtype)
        r = machine.run("empty", (), (flat.shape[0],), FLOAT32)
        machine.launch("triton::_rms_layernorm_forward", (y, flat, weight), x.dtype, y.nbytes)
    return finish(node, y.alias(shape, None), flat, weight, r)


def compiled_norm(graph: Tracer, x: Tensor) -> Tensor:
    """`_rms_layernorm_op`: as compiled code runs it, with results of its own."""
    shape = x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        dy = gradients[0].reshape(-1, shape[-1]).contiguous()
        [dx] = graph.kernel("triton::_rms_layernorm_backward", (dy, node.take(0), node.take(1)), [(dy.shape, dy.dtype)])
        return (dx.alias(shape, None),)

    node = start(x.machine, (x,), back)
    with x.machine.no_grad():
        flat = x.reshape(-1, shape[-1]).contiguous()
    outs = [(flat.shape, x.dtype), ((flat.shape[0],), FLOAT32)]
    y, r = graph.kernel("triton::_rms_layernorm_forward", (flat,), outs)
    return finish(node, y.alias(shape, None), flat, r)


def compiled_rotary(graph: Tracer, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`_rope_embedding_op`, of queries or keys by token; the kernel for both gets one element in the other's place."""
    outs = [(x.shape, x.dtype), ((1,), x.dtype)]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return graph.kernel("triton::_rope_embedding_QK", (gradients[0], cos, sin), outs)[:1]

    node = start(x.machine, (x,), back)
    return finish(node, graph.kernel("triton::_rope_embedding_QK", (x,), outs)[0])


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Sequence[Tensor]:
    """`Fast_RoPE_Embedding_QK_Positions`: in place where the projections' layout allows; gradients are new."""
    machine = q.machine
    if machine.graph is not None:
        return [compiled_rotary(machine.graph, x.transpose(1, 2), cos, sin).transpose(1, 2) for x in (q, k)]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        dq, dk = gradients
        dq_out, dk_out = by_token(dq), by_token(dk)
        machine.launch("triton::_rope_embedding_QK", (dq, dq_out, dk, dk_out), dq.dtype, dq.nbytes + dk.nbytes)
        return dq_out, dk_out

    node = start(machine, (q, k), back)
    q_out, k_out = (x if x.transpose(1, 2).is_contiguous() else by_token(x) for x in (q, k))
    machine.launch("triton::_rope_embedding_QK", (q, k, cos, sin), q.dtype, q.nbytes + k.nbytes)
    return several(node, [x.alias(x.shape, x.strides) for x in (q_out, k_out)])


def by_token(x: Tensor) -> Tensor:
    """[batch, heads, length, width] over memory laid out by token."""
    batch, heads, length, width = x.shape
    return x.machine.run("empty", (), (batch, length, heads, width), x.dtype).transpose(1, 2)


def normed_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Sequence[Tensor]:
    """`fast_qk_norm_rope` of Qwen 3 (unsloth/kernels/qk_norm_rope.py): queries and keys as projected, by token."""
    machine = q.machine
    indices = machine.run("empty" if machine.graph else "new_empty", (), (1,), INT32)
    if machine.graph is not None:
        return compiled_normed_rotary(machine.graph, q, k, cos, sin, indices)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k = node.take(0), node.take(1)
        dq, dk = (machine.run("empty", (), x.shape, x.dtype) for x in (q, k))
        machine.launch("triton::_qk_norm_rope_backward", (*gradients, dq, dk), q.dtype, dq.nbytes + dk.nbytes)
        return dq, dk

    node = start(machine, (q, k), back)
    outs = [machine.run("empty", (), x.shape, x.dtype) for x in (q, k)]
    means = [machine.run("empty", (), x.shape[:-1], FLOAT32) for x in (q, k)]
    machine.launch("triton::_qk_norm_rope_forward", (*outs, q, k, cos, sin), q.dtype, q.nbytes + k.nbytes)
    return several(node, outs, q, k, *means, indices)


def compiled_normed_rotary(
    graph: Tracer, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, indices: Tensor
) -> Sequence[Tensor]:
    """`_qk_norm_rope_op`."""
    likes = [(x.shape, x.dtype) for x in (q, k)]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, *means = node.taken
        reads = (*gradients, q, means[0], k, means[1], cos, sin, indices)
        return graph.kernel("triton::_qk_norm_rope_backward", reads, likes)

    node = start(q.machine, (q, k), back)
    means = [(x.shape[:-1], FLOAT32) for x in (q, k)]
    outs = [likes[0], means[0], likes[1], means[1]]
    q_out, r_q, k_out, r_k = graph.kernel("triton::_qk_norm_rope_forward", (q, k), outs, (0, 2, 1, 3), (indices,))
    return several(node, [q_out, k_out], q, k, r_q, r_k)
