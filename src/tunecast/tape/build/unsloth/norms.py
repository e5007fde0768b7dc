"""Norms and rotary positions (unsloth/kernels/rms_layernorm.py, rope_embedding.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import ops
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.tensor import FLOAT32, INT32, Tensor
from tunecast.tape.build.unsloth.fast_lora import several


def rms_norm(x: Tensor, weight: Tensor, reuse_grad: bool, gemma: bool = False) -> Tensor:
    """`Fast_RMS_Layernorm`: where nobody else reads it, the gradient that came in is written over."""
    machine, shape = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        dy = ops.contiguous(ops.reshape(gradients[0], -1, shape[-1]))
        x, _, _ = (node.take(place) for place in range(3))
        dx = dy if reuse_grad and not gemma else machine.run("empty_like", (dy,), dy.shape, dy.dtype)
        machine.launch("triton::_rms_layernorm_backward", (dy, dx, x), dy.dtype, dx.nbytes)
        return dx.alias(shape, None), None

    node = start(machine, (x, weight), back)
    with machine.no_grad():
        flat = ops.contiguous(ops.reshape(x, -1, shape[-1]))
        y = machine.run("empty", (), flat.shape, x.dtype)
        r = machine.run("empty", (), (flat.shape[0],), FLOAT32)
        machine.launch("triton::_rms_layernorm_forward", (y, flat, weight), x.dtype, y.nbytes)
    return finish(node, y.alias(shape, None), flat, weight, r)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Sequence[Tensor]:
    """`Fast_RoPE_Embedding_QK_Positions`: in place where the projections' layout allows; gradients are new."""
    machine = q.machine

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
    indices = machine.run("new_empty", (), (1,), INT32)

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
