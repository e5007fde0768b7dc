"""Log-probabilities of labels from whole logits, on paper; `chunked.py` is the head that makes none.

`selective_log_softmax` is TRL's from 1.15 on (trl/kernels/logprob_entropy.py): one kernel reads the logits, another
writes their gradient. `by_rows` is what it was before (trl/trainer/utils.py of 1.9.0), `by_softmax` what others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start, wants
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.tensor import Tensor


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """trl/trainer/utils.py, `selective_log_softmax`, on cards that have Triton; entropies come with it, and go."""
    return log_probs_and_entropy(logits, index)[0]


def log_probs_and_entropy(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """`_LogProbEntropyFunction`: numbers of each token in float32, and a contiguous gradient of all logits."""
    machine, shape = logits.machine, logits.shape[:-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        logits = node.take(0)
        grad_logits = machine.run("empty_like", (logits,), logits.shape, logits.dtype)
        machine.launch("triton::_backward_kernel", (logits,), logits.dtype, grad_logits.nbytes)
        return (grad_logits,)

    node = start(machine, (logits,), back)
    logprobs, entropy, log_z, expected_logit = [machine.run("empty", (), shape, FLOAT32) for _ in range(4)]
    machine.launch("triton::_forward_kernel", (logits, index), logits.dtype, 4 * logprobs.nbytes)
    return finish(node, logprobs, logits, index, log_z, expected_logit), entropy


def by_rows(logits: Tensor, index: Tensor) -> Tensor:
    """`selective_log_softmax` of logits in float32: those of the labels, less the logarithm of each row's sum."""
    index = index.unsqueeze(-1)
    selected_logits = gather(logits, index)
    logsumexp_values = stacked([log_sum_exp(lg) for lg in unbound(logits)])
    per_token_logps = selected_logits - logsumexp_values.unsqueeze(-1)
    return per_token_logps.squeeze(-1)


def by_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """`torch.gather(logits.log_softmax(-1), dim=2, index=index.unsqueeze(2)).squeeze(2)`."""
    machine, shape, dtype = logits.machine, logits.shape, logits.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("_log_softmax_backward_data", (gradients[0], node.take(0)), shape, dtype),)

    node = start(machine, (logits,), back)
    log = machine.run("_log_softmax", (logits,), shape, dtype)
    return gather(finish(node, log, log.detach()), index.unsqueeze(-1)).squeeze(-1)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Over the last dimension; the gradient is added up in zeros."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        x = node.take(0)
        zeros = machine.run("new_zeros", (), x.shape, x.dtype)
        machine.launch("scatter_add_", (zeros, node.take(1), gradients[0]), x.dtype, gradients[0].nbytes)
        return (zeros,)

    node = start(machine, (x,), back, (x, index))
    return finish(node, machine.run("gather", (x, index), index.shape, x.dtype))


def unbound(x: Tensor) -> list[Tensor]:
    """Iterating over a tensor: views of its rows, whose gradients are stacked."""
    machine, shape, dtype = x.machine, x.shape, x.dtype
    strides = x.stride()

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("stack", gradients, shape, dtype),)

    rows = [x.alias(shape[1:], strides[1:], x.offset + place * strides[0]) for place in range(shape[0])]
    if wants(machine, x):
        node = Node(machine, back, (x,), ())
        node.outputs = len(rows)
        for number, row in enumerate(rows):
            row.node, row.number, row.requires_grad = node, number, True
    return rows


def log_sum_exp(x: Tensor) -> Tensor:
    """grad * (x - result).exp()."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        x, result = node.take(0), node.take(1)
        less = machine.run("sub", (x, result), x.shape, x.dtype)
        risen = machine.run("exp", (less,), x.shape, x.dtype)
        return (machine.run("mul", (gradients[0], risen), x.shape, x.dtype),)

    node = start(machine, (x,), back, (x,))
    out = machine.run("logsumexp", (x,), x.shape[:-1], x.dtype, args=(x, (-1,), False))
    return finish(node, out, out.detach())


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """In a new first dimension; the gradients are views."""
    machine, shape, count = parts[0].machine, parts[0].shape, len(parts)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        strides = gradient.stride()
        return [gradient.alias(shape, strides[1:], gradient.offset + place * strides[0]) for place in range(count)]

    node = start(machine, parts, back)
    return finish(node, machine.run("stack", parts, (count, *shape), parts[0].dtype))
