"""Context parallelism on paper: a sequence over ranks, attention in a ring.

After torch 2.13, torch/distributed/tensor/experimental/_context_parallel/_attention.py (`_templated_ring_attention`): a
rank keeps its queries and sees the keys and values of all, a part at a time. They are gathered once (`allgather`, which
is torchtitan's `context_parallel_rotate_method`); gradients of keys and values travel around. Each rank has a part from
the front and one from the back of the sequence, so that causal attention is as much work for all: after the first turn
a turn is half of its scores. Results are merged in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import flops_of
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, INT64, Shape
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

GROUP = "context"
KERNEL = "_scaled_dot_product_flash_attention"


def ring_attention(query: Tensor, key: Tensor, value: Tensor, ranks: int) -> Tensor:
    """[batch, heads, length, width] each, of this rank's part of the sequence; causal."""
    machine = query.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, v, out, lse = (node.take(place) for place in range(5))
        return ring_backward(gradients[0], q, k, v, out, lse, ranks)

    node = start(machine, (query, key, value), back, (query, key, value))
    with machine.no_grad():
        key, value = key.contiguous(), value.contiguous()
        next_kv, everybodys = gathered(key, value, ranks)
        k, v = key, value
        out, lse, *rest = attended(query, k, v, causal=True)
        merger = Merger(out, lse)
        del lse
        for turn in range(1, ranks):
            next_kv = None
            key, value = pair_in(everybodys, key.shape, value.shape)
            if turn < ranks - 1:  # sent to nobody: they are there already
                machine.run("cat", (key, value), (key.numel() + value.numel(),), key.dtype)
            k, v = key, value
            out, block_lse, *rest = attended(later_half(query), k, v, causal=False)
            merger.step(out, block_lse)
        result, lse = merger.out.to(query.dtype), merger.lse
        del merger, key, value, k, v, everybodys, next_kv
    return finish(node, result, result.detach(), lse, *rest)


def ring_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, ranks: int
) -> list[Tensor]:
    machine = query.machine
    grad_query, grad_key, grad_value = [
        machine.run("zeros_like", (), t.shape, FLOAT32, strides=F.kept_strides(t)) for t in (query, key, value)
    ]
    shapes = key.shape, value.shape
    key, value = key.contiguous(), value.contiguous()
    arrived: Any = None
    sent: Any = None
    names: dict[str, Any] = {}
    """What only a name of the real loop holds until it is given anew."""
    for turn in range(ranks):
        if turn == 0:
            names["next_kv"], everybodys = gathered(key, value, ranks)
            names["k"], names["v"] = key, value
            q, dout, kept, kept_lse = query, gradient, out, lse
        else:
            key, value = pair_in(everybodys, *shapes)
            if turn < ranks - 1:
                names["next_kv"] = machine.run("cat", (key, value), (key.numel() + value.numel(),), key.dtype)
            q, dout, kept = [later_half(t) for t in (query, gradient, out)]
            kept_lse = later_half(lse).contiguous()
            names["k"], names["v"] = key, value
        likes = [(t.shape, t.dtype) for t in (q, key, value)]
        args = (dout, q, key, value, kept, kept_lse, None, None, None, 0.0)
        flops = scores_of(q, key, value, causal=turn == 0) * 5 // 2
        made = machine.run_many(KERNEL + "_backward", (dout, q, key, value), likes, flops, args)
        if turn:  # another rank's keys: their gradients so far come from the rank before
            grad_key, grad_value = pair_in(arrived, *shapes)
            sent = None
        for total, part in ((grad_key, made[1]), (grad_value, made[2])):
            machine.launch("add_", (total, part), FLOAT32, total.nbytes)
        del total, part
        flat = [t.reshape(-1) for t in (grad_key, grad_value)]
        sent = machine.run("cat", flat, (grad_key.numel() + grad_value.numel(),), FLOAT32)
        del flat
        arrived = machine.exchange("all_to_all", GROUP, ranks, sent, sent.shape)
        if turn == 0:
            machine.launch("add_", (grad_query, made[0]), FLOAT32, grad_query.nbytes)
        else:
            half = later_half(grad_query)
            machine.launch("add_", (half, made[0]), FLOAT32, half.nbytes)
            grad_query = machine.run("cat", (grad_query, half), grad_query.shape, FLOAT32)
            del half
    grad_query = grad_query.to(query.dtype)
    arrived = arrived.to(key.dtype)
    return [grad_query, *pair_in(arrived, *shapes)]


def gathered(key: Tensor, value: Tensor, ranks: int) -> tuple[Any, Tensor]:
    """Keys and values in one buffer, and those of all ranks."""
    machine, numel = key.machine, key.numel() + value.numel()
    sent = machine.run("cat", (key, value), (numel,), key.dtype)
    return sent, machine.exchange("all_gather", GROUP, ranks, sent, (numel * ranks,))


def pair_in(buffer: Tensor, first: Shape, second: Shape) -> tuple[Tensor, Tensor]:
    """Two tensors behind each other in a buffer."""
    return buffer.alias(first, None, buffer.offset), buffer.alias(second, None, buffer.offset + prod(first))


def scores_of(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> int:
    """Every fused attention on a tape is taken for causal, which does half of what it says; only the first turn is."""
    return flops_of(query, key, value) * (1 if causal else 2)


def attended(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> list[Tensor]:
    batch, heads, length, _ = query.shape
    outs = ((query.shape, query.dtype), ((batch, heads, length), FLOAT32), ((2,), INT64), ((), INT64))
    args = (query, key, value, 0.0, causal)
    flops = scores_of(query, key, value, causal)
    return query.machine.run_many(KERNEL, (query, key, value), outs, flops, args)


def later_half(x: Tensor) -> Tensor:
    return x[:, :, x.shape[2] // 2 :]


class Merger:
    """`_SDPAMerger`: the later half of the rows is brought up to date, and put behind the earlier."""

    def __init__(self, out: Tensor, lse: Tensor) -> None:
        self.out: Any = out.float()
        self.lse = lse

    def step(self, out: Tensor, block_lse: Tensor) -> None:
        machine, wide, narrow = out.machine, out.shape, block_lse.shape
        block_out = out.float()
        weight = machine.run("sub", (block_lse, self.lse), narrow, FLOAT32).sigmoid()
        apart = machine.run("sub", (self.out, block_out), wide, FLOAT32)
        weighed = machine.run("mul", (weight, apart), wide, FLOAT32)
        del weight, apart
        newer = machine.run("sub", (self.out, weighed), wide, FLOAT32)
        del weighed
        slope = pointwise("log_sigmoid", machine.run("sub", (self.lse, block_lse), narrow, FLOAT32))
        newer_lse = machine.run("sub", (self.lse, slope), narrow, FLOAT32)
        del slope
        self.lse = machine.run("cat", (self.lse, newer_lse), self.lse.shape, FLOAT32)
        self.out = machine.run("cat", (self.out, newer), self.out.shape, FLOAT32)
