"""Context parallelism on paper: a sequence over ranks, attention in a ring.

After torch 2.13, torch/distributed/tensor/experimental/_context_parallel/_attention.py (`_templated_ring_attention`): a
rank keeps its queries and sees the keys and values of all, a part at a time. They are gathered once (`allgather`, which
is torchtitan's `context_parallel_rotate_method`); gradients of keys and values travel around. Each rank has a part from
the front and one from the back of the sequence, so that causal attention is as much work for all: after the first turn
a turn is half of its scores. Results are merged in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import ops
from tunecast.tape.build.attention import flops_of
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.tensor import FLOAT32, INT64, Tensor

GROUP = "context"
KERNEL = "_scaled_dot_product_flash_attention"


def ring_attention(query: Tensor, key: Tensor, value: Tensor, ranks: int) -> Tensor:
    """[batch, heads, length, width] each, of this rank's part of the sequence; causal."""
    machine = query.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, v, out = (node.take(place) for place in range(4))
        return ring_backward(gradients[0], q, k, v, out, ranks)

    node = start(machine, (query, key, value), back, (query, key, value))
    with machine.no_grad():
        key, value = ops.contiguous(key), ops.contiguous(value)
        merged: Any = None
        for turn in range(ranks):
            if turn == 0:
                everybodys = gathered(key, value, ranks)
            q = query if turn == 0 else later_half(query)
            out, lse = attended(q, key, value, causal=turn == 0)
            merged = ops.to(out, FLOAT32) if turn == 0 else merge(merged, out, lse)
            del out, q
        del everybodys
        result = ops.to(merged, query.dtype)
        del merged
    return finish(node, result, result.detached(), lse)


def ring_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, ranks: int) -> list[Tensor]:
    machine = query.machine
    grads = [machine.run("zeros_like", (), t.shape, FLOAT32) for t in (query, key, value)]
    key, value = ops.contiguous(key), ops.contiguous(value)
    for turn in range(ranks):
        if turn == 0:
            everybodys = gathered(key, value, ranks)
        q, dout, kept = (query, gradient, out) if turn == 0 else [later_half(t) for t in (query, gradient, out)]
        likes = [(t.shape, t.dtype) for t in (q, key, value)]
        args = (dout, q, key, value, kept, None, None, None, None, 0.0)
        flops = scores_of(q, key, value, causal=turn == 0) * 5 // 2
        made = machine.run_many(KERNEL + "_backward", (dout, q, key, value), likes, flops, args)
        for place, part in enumerate(made):
            if place and turn:  # another rank's keys: their gradients so far come from the rank before
                grads[place] = machine.exchange("all_to_all", GROUP, ranks, grads[place], grads[place].shape)
            machine.launch("add_", (grads[place], part), FLOAT32, part.numel() * 4)
        del made, part, q, dout, kept, args
    del everybodys
    return [ops.to(grads.pop(0), query.dtype) for _ in range(3)]


def gathered(key: Tensor, value: Tensor, ranks: int) -> Tensor:
    """Keys and values of all ranks, in one buffer."""
    machine, numel = key.machine, key.numel() + value.numel()
    sent = machine.run("cat", (key, value), (numel,), key.dtype)
    return machine.exchange("all_gather", GROUP, ranks, sent, (numel * ranks,))


def scores_of(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> int:
    """Every fused attention on a tape is taken for causal, which does half of what it says; only the first turn is."""
    return flops_of(query, key, value) * (1 if causal else 2)


def attended(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    batch, heads, length, _ = query.shape
    outs = ((query.shape, query.dtype), ((batch, heads, length), FLOAT32), ((2,), INT64), ((), INT64))
    args = (query, key, value, 0.0, causal)
    flops = scores_of(query, key, value, causal)
    out, lse, *_ = query.machine.run_many(KERNEL, (query, key, value), outs, flops, args)
    return out, lse


def later_half(x: Tensor) -> Tensor:
    return ops.slice_(x, 2, x.shape[2] // 2, x.shape[2])


def merge(merged: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """`_SDPAMerger`: the later half of the rows is brought up to date, and put behind the earlier."""
    machine = merged.machine
    apart = machine.run("sub", (merged, out), out.shape, FLOAT32)
    weighed = machine.run("mul", (apart, lse), out.shape, FLOAT32)
    newer = machine.run("sub", (merged, weighed), out.shape, FLOAT32)
    del apart, weighed
    return machine.run("cat", (merged, newer), merged.shape, FLOAT32)
