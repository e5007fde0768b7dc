"""Apple's Cut Cross-Entropy on paper (cut-cross-entropy 25.6.4): head and loss as one function that makes no logits.

A block of them at a time is computed in its kernels, and again in the backward pass.

Source   cut_cross_entropy/cce.py, cce_lse_forward.py, cce_backward.py, indexed_dot.py; transformers/llama.py.
Ignored  blocks whose gradient rounds to nothing, which the backward pass leaves out (`filter_eps`): it takes less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT32, INT64
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.tensor import Tensor

READ = (
    "kernels cut_cross_entropy follows its source and was not traced; blocks that its backward pass leaves out are "
    "counted, so that it takes less time than is said"
)
BLOCK_ROWS, BLOCK_WIDTH = 128, 64
"""Of what a lock is for (`cce_backward_kernel`)."""


def apply(model: Any) -> None:
    model.machine.guesses[READ] = None
    model.forward = MethodType(causal_lm_forward, model)


def causal_lm_forward(self: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **images: Tensor) -> Tensor:
    """`cce_forward`, `apply_lce`."""
    outputs = self.base()(input_ids, attention_mask=attention_mask, **images)
    hidden_states = first_of(outputs)
    head = self.output_embedding()
    weight = getattr(head, "base_layer", head).weight
    return self.divide_by_items(linear_cross_entropy(hidden_states, weight, labels))


def linear_cross_entropy(e: Tensor, c: Tensor, labels: Tensor) -> Tensor:
    machine = e.machine
    e = e.contiguous()
    valids = flat_valids(labels)
    e = e.view(-1, e.shape[-1])
    dtypes = e.dtype, c.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        e, c, logit_avg = node.take(0), node.take(1), node.take(4)
        ordering = machine.run("argsort", (logit_avg,), logit_avg.shape, INT32)
        grads = [
            machine.run("zeros_like", (x,), x.shape, x.dtype) if needed else None
            for x, needed in zip((e, c), node.needs, strict=True)
        ]
        locks = [locks_of(x) for x in grads if x is not None]
        machine.again = True
        multiply(e, c)
        machine.again = False
        for _ in locks:
            multiply(e, c)
        del ordering, locks
        return [None if x is None else x.to(dtype) for x, dtype in zip(grads, dtypes, strict=True)]

    node = start(machine, (e, c), back)
    with machine.no_grad():
        if machine.autocast is not None:
            e = e.to(machine.autocast)
            c = c.to(machine.autocast)
        rows = valids.shape[0]
        lse = machine.run("new_full", (), (rows,), FLOAT32)
        locks = machine.run("new_full", (), (-(-rows // BLOCK_ROWS),), INT32)
        logit_avg = machine.run("new_full", (), (c.shape[0],), FLOAT32)
        multiply(e, c)
        del locks
        neg_dot = machine.run("new_zeros", (), (rows,), FLOAT32)
        machine.launch("triton::_indexed_neg_dot_forward_kernel", (e, neg_dot), e.dtype, neg_dot.nbytes)
        machine.launch("add_", (neg_dot, lse), FLOAT32, neg_dot.nbytes)
        loss = neg_dot.sum(0)
    return finish(node, loss, e, c, lse, valids, logit_avg)


def flat_valids(labels: Tensor) -> Tensor:
    """`_build_flat_valids`: the places of the labels that count, from the second of each row on."""
    machine = labels.machine
    batch, length = labels.shape
    rows = batch * (length - 1)
    counts = machine.run("ne", (labels,), (batch, length - 1), BOOL)
    found = machine.run("nonzero", (counts,), (rows, 2), INT64, args=(counts,))
    del counts
    valids = found.to(INT32)
    del found
    return machine.run("sum", (valids,), (rows,), INT64)


def multiply(e: Tensor, c: Tensor) -> None:
    """Hidden states and the head, whose product stays in the kernel."""
    e.machine.launch("mm", (e, c.t()), e.dtype, 0, 2 * e.numel() * c.shape[0])


def locks_of(x: Tensor) -> Tensor:
    rows, width = x.shape
    return x.machine.run("new_zeros", (), (-(-rows // BLOCK_ROWS), -(-width // BLOCK_WIDTH)), INT32)
