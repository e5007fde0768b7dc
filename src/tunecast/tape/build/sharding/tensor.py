"""Tensor parallelism on paper: a layer's matrices split over ranks, activations changing hands between them.

After torch's DTensor (torch 2.13, torch/distributed/tensor: parallel/style.py, _redistribute.py, parallel/loss.py).
Ways of the activations, each the other's gradient:

    gathered      a part of the sequence -> all of it     <->  summed_part   sums of all ranks, this rank's part of them
    summed        sums of all ranks                       <->  copied        the same on every rank

Linear layers split by columns make a part of the features, those split by rows sums to be added up. With sequence
parallelism (torchtitan's plan) `gathered` stands before the first kind and `summed_part` behind the second, and norms
between them see a part of the sequence; without (transformers' `tp_plan="auto"`) these are `copied` and `summed`.

    split = TensorParallel(machine, 8)
    split.columns(layer.attention.wq); split.rows(layer.attention.wo, sequence=True)
    split.takes_sequence(layer.attention)           # its input is gathered first

Weights change their shape here, so this comes before they are brought to the card, and before FSDP cuts them further.
Collectives run on the default stream: what follows needs them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Embedding, Linear, Module
from tunecast.tape.build.tensor import Tensor

GROUP = "tensor"
SEQUENCE = 1
"""The dimension of [batch, length, width] that is split between layers."""


class TensorParallel:
    def __init__(self, machine: Machine, ranks: int) -> None:
        self.machine, self.ranks = machine, ranks
        self.unawaited: list[Tensor] = []
        """What a collective reads until somebody asks for its result (`AsyncCollectiveTensor`)."""

    # ------------------------------------------------------------------------------------------ activations

    def gathered(self, x: Tensor) -> Tensor:
        """Shard(1) -> Replicate()."""
        node = start(self.machine, (x,), lambda node, gradients: (self._sum_part(gradients[0]),))
        return finish(node, self._gather(x))

    def summed_part(self, x: Tensor, waits: bool = True) -> Tensor:
        """Partial() -> Shard(1)."""
        node = start(self.machine, (x,), lambda node, gradients: (self._gather(gradients[0]),))
        return finish(node, self._sum_part(x, waits))

    def summed(self, x: Tensor) -> Tensor:
        """Partial() -> Replicate()."""
        node = start(self.machine, (x,), lambda node, gradients: (gradients[0],))
        return finish(node, self._sum(x))

    def copied(self, x: Tensor) -> Tensor:
        """Replicate() whose gradients are Partial()."""
        node = start(self.machine, (x,), lambda node, gradients: (self._sum(gradients[0]),))
        return finish(node, x.detach())

    def joined(self, x: Tensor) -> Tensor:
        """Shard(-1) -> Replicate(): all features; the gradient is this rank's part of them, copied."""
        machine, shape = self.machine, x.shape
        wide = (*shape[:-1], shape[-1] * self.ranks)

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            return (machine.run("clone", gradients, shape, gradients[0].dtype),)

        node = start(machine, (x,), back)
        stacked = machine.exchange("all_gather", GROUP, self.ranks, x, (shape[0] * self.ranks, *shape[1:]))
        return finish(node, machine.run("cat", chunks(stacked, self.ranks, 0), wide, x.dtype))

    def _gather(self, x: Tensor) -> Tensor:
        """All ranks' parts behind each other, then side by side."""
        machine, (batch, length, width) = self.machine, x.shape
        stacked = machine.exchange("all_gather", GROUP, self.ranks, x.contiguous(), (batch * self.ranks, length, width))
        return machine.run("cat", chunks(stacked, self.ranks, 0), (batch, length * self.ranks, width), x.dtype)

    def _sum_part(self, x: Tensor, waits: bool = True) -> Tensor:
        machine, (batch, length, width) = self.machine, x.shape
        part = (batch * self.ranks, length // self.ranks, width)
        behind = machine.run("cat", chunks(x, self.ranks, SEQUENCE), part, x.dtype)
        if not waits:
            self.unawaited.append(behind)
        return machine.exchange("reduce_scatter", GROUP, self.ranks, behind, (batch, length // self.ranks, width))

    def _sum(self, x: Tensor) -> Tensor:
        return self.machine.exchange("all_reduce", GROUP, self.ranks, x, x.shape)

    # ---------------------------------------------------------------------------------------------- modules

    def part(self, size: int, what: str) -> int:
        if size % self.ranks:
            raise UsageError.at("parallel.tensor", f"{what} of {size} cannot be split over {self.ranks} cards")
        return size // self.ranks

    def columns(self, linear: Linear, sequence: bool | None = None, whole: bool = False) -> None:
        """`ColwiseParallel`; `sequence`: whether its own input is a part of the sequence, None if it comes whole;
        `whole`: its result is put together on every rank (`output_layouts=Replicate()`)."""
        linear.outputs = self.part(linear.outputs, "a linear layer")
        linear.weight = linear.parameter(linear.outputs, linear.inputs)
        if linear.bias is not None:
            linear.bias = linear.parameter(linear.outputs)
        if sequence is None:
            before(linear, added_in_place)
        else:
            before(linear, self.gathered if sequence else self.copied)
        if whole:
            after(linear, self.joined)

    def rows(self, linear: Linear, sequence: bool) -> None:
        """`RowwiseParallel`. A bias is whole on every rank."""
        linear.inputs = self.part(linear.inputs, "a linear layer")
        linear.weight = linear.parameter(linear.outputs, linear.inputs)
        after(linear, self.summed_part if sequence else self.summed)

    def takes_sequence(self, module: Module) -> None:
        """`PrepareModuleInput`: the first argument, a part of the sequence, is gathered for all that is inside."""
        before(module, self.gathered)

    def awaits(self, module: Module) -> None:
        """The first to read what is still on its way."""

        def awaited(x: Tensor) -> Tensor:
            self.unawaited.clear()
            return x

        before(module, awaited)

    def by_words(self, embedding: Embedding, sequence: bool) -> None:
        """`RowwiseParallel` of an embedding: other ranks' words are read as the first and set to zero
        (`_ops/_embedding_ops.py`, `_MaskPartial`). Its gradient is made for all words, and this rank's are copied."""
        words, width = embedding.weight.shape
        rows = self.part(words, "a vocabulary")
        embedding.weight = embedding.parameter(rows, width)
        machine = self.machine

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            gradient, kept = gradients[0], node.take(0)
            args = (gradient, kept, words, -1, False)
            made = machine.run("embedding_dense_backward", (gradient, kept), (words, width), gradient.dtype, args=args)
            del gradient, args
            gradients.clear()
            return (machine.run("clone", (made,), (rows, width), made.dtype),)

        def forward(ids: Tensor) -> Tensor:
            weight = embedding.weight
            node = start(machine, (weight,), back, (ids,))
            mask, own = own_of(ids)
            out = machine.run("embedding", (weight, own), (*ids.shape, width), weight.dtype)
            del own
            machine.launch("index_put_", (out, mask), out.dtype, out.nbytes)
            del mask
            out = finish(node, out)
            return self.summed_part(out, waits=False) if sequence else self.summed(out)

        object.__setattr__(embedding, "forward", forward)

    # ------------------------------------------------------------------------------------------------- loss

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """`loss_parallel`: of fp32 logits of this rank's words [tokens, words]; no rank ever holds all."""
        machine, tokens = self.machine, logits.shape[0]
        one = (tokens, 1)

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            """`_nll_loss_and_log_softmax_backward`: both at once."""
            log, count = node.take(0), node.take(2)
            each = machine.run("div", (gradients[0], count), (), FLOAT32)
            target = kept_labels(node.take(1), one)
            chosen = machine.run("zeros_like", (log,), log.shape, FLOAT32)
            mask, own = own_of(target)
            negative = machine.run("sub", (machine.run("_to_copy", (mask,), (tokens,), FLOAT32),), (tokens,), FLOAT32)
            positions = machine.run("arange", (), (tokens,), INT64)
            machine.launch("index_put_", (chosen, positions, own, negative), FLOAT32, tokens * 4)
            counted = machine.run("ne", (target,), one, BOOL)
            weight = machine.run("where", (counted, each), one, FLOAT32)
            del counted, each
            total = machine.run("add", (chosen, log.exp()), log.shape, FLOAT32)
            return (machine.run("mul", (total, weight), log.shape, FLOAT32),)

        node = start(machine, (logits,), back)
        most = self._sum(machine.run("amax", (logits,), one, FLOAT32))
        shifted = machine.run("sub", (logits, most), logits.shape, FLOAT32)
        sums = self._sum(machine.run("sum", (shifted.exp(),), one, FLOAT32))
        logs = sums.log()
        log = machine.run("sub", (shifted, logs), logits.shape, FLOAT32)
        del most, shifted, sums, logs
        target = kept_labels(labels, (tokens,))
        mask, own = own_of(target)
        found = machine.run("gather", (log, own), one, FLOAT32)
        machine.launch("index_put_", (found, mask), FLOAT32, found.nbytes)
        del mask
        of_all = self._sum(found)
        losses = kept_losses(of_all, labels)
        count = machine.run("_to_copy", (counted_labels(labels),), (), FLOAT32)
        total = machine.run("sum", (losses,), (), FLOAT32)
        return finish(node, machine.run("div", (total, count), (), FLOAT32), log, labels, count)


def chunks(x: Tensor, count: int, dim: int) -> list[Tensor]:
    """Views side by side, without a history."""
    strides, size = x.stride(), x.shape[dim] // count
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    return [x.alias(shape, strides, x.offset + place * size * strides[dim]) for place in range(count)]


def added_in_place(x: Tensor) -> Tensor:
    """A DTensor is no view of anything, so gradients of one that several layers read are added to the first."""

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradients[0].is_view = False
        return gradients

    return finish(start(x.machine, (x,), back), x.detach())


def before(module: Module, change: Callable[[Tensor], Tensor]) -> None:
    """The first argument is changed before the module sees it; the caller's lives as long as the call."""
    forward: Callable[..., Any] = module.forward

    def run(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(change(x), *args, **kwargs)

    object.__setattr__(module, "forward", run)


def after(module: Module, change: Callable[[Tensor], Tensor]) -> None:
    forward: Callable[..., Any] = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        return change(forward(*args, **kwargs))

    object.__setattr__(module, "forward", run)


def own_of(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where ids are other ranks', and the ids as this rank counts them."""
    machine = ids.machine
    below = ids.lt(0)
    above = ids.ge(0)
    mask = machine.run("__or__", (below, above), ids.shape, BOOL)
    del below, above
    copy = ids.clone()
    own = copy - 1
    del copy
    machine.launch("index_put_", (own, mask), INT64, own.nbytes)
    return mask, own


def kept_labels(labels: Tensor, shape: tuple[int, ...]) -> Tensor:
    counted = labels.machine.run("ne", (labels,), shape, BOOL)
    return labels.machine.run("where", (counted, labels), shape, INT64)


def kept_losses(found: Tensor, labels: Tensor) -> Tensor:
    machine = found.machine
    negative = -found
    counted = labels.ne(0)
    return machine.run("where", (counted, negative), labels.shape, FLOAT32)


def counted_labels(labels: Tensor) -> Tensor:
    counted = labels.ne(0)
    return counted.sum(0)
