"""Megatron Core's loss on paper, the vocabulary split over ranks: TransformerEngine's kernel, or torch in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.stacks.megatron.linears import MegatronRank
from tunecast.tape.build.tensor import Tensor


def fused_cross_entropy(logits: Tensor, labels: Tensor, parts: MegatronRank) -> Tensor:
    """TE's fused loss: the gradient is written over the logits in the forward pass; ranks exchange a maximum and a sum
    a token (transformer_engine/pytorch/cross_entropy.py)."""
    machine = logits.machine
    tokens = logits.numel() // logits.shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = node.take(0)
        machine.launch("element_mul", (kept, gradients[0]), kept.dtype, kept.nbytes)
        return (kept,)

    node = start(machine, (logits,), back)
    machine.launch("online_softmax", (logits, labels), logits.dtype, 3 * tokens * FLOAT32.itemsize)
    if parts.tensor > 1:
        nbytes = 3 * tokens * FLOAT32.itemsize
        machine.collective("all_gather", "tensor", parts.tensor, FLOAT32, nbytes, nbytes * parts.tensor, 3 * tokens)
    machine.launch("cross_entropy", (logits, labels), logits.dtype, logits.nbytes)
    loss = machine.tensor((), FLOAT32)
    return finish(node, loss, logits)


def full_cross_entropy(logits: Tensor, labels: Tensor, parts: MegatronRank) -> Tensor:
    """Without `--cross-entropy-loss-fusion`: logits are copied to float32, and softmax and gradient are written over
    the copy; the gradient is cast back (megatron/core/tensor_parallel/cross_entropy.py)."""
    machine, shape, dtype = logits.machine, logits.shape, logits.dtype
    tokens = logits.numel() // shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        wide = node.take(0)
        machine.launch("mul_", (wide, gradients[0]), FLOAT32, wide.nbytes)
        return (machine.run("_to_copy", (wide,), shape, dtype),)

    node = start(machine, (logits,), back)
    wide = machine.run("_to_copy", (logits,), shape, FLOAT32)
    machine.launch("max", (wide,), FLOAT32, tokens * FLOAT32.itemsize)
    for name in ("sub_", "exp_", "div_"):
        machine.launch(name, (wide,), FLOAT32, wide.nbytes)
    machine.launch("sum", (wide,), FLOAT32, tokens * FLOAT32.itemsize)
    if parts.tensor > 1:
        for _ in range(3):  # maximum, the label's logit, sum
            nbytes = tokens * FLOAT32.itemsize
            machine.collective("all_reduce", "tensor", parts.tensor, FLOAT32, nbytes, nbytes, tokens)
    loss = machine.tensor((), FLOAT32)
    return finish(node, loss, wide)
