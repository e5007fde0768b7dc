"""`Trainer.train_step` and `forward_backward_step` (torchtitan/train.py), without a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.compiled import Region
from tunecast.tape.build.dtypes import INT32, INT64
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.sharding.tensor import TensorParallel
from tunecast.tape.build.stacks.torchtitan.experts import GroupedExperts
from tunecast.tape.build.stacks.torchtitan.model import Transformer
from tunecast.tape.build.stacks.torchtitan.parallel import TitanRanks
from tunecast.tape.build.stacks.torchtitan.releases import TitanRelease
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase


def loss_of(split: TensorParallel | None) -> Callable[[Tensor, Tensor], Tensor]:
    cross_entropy = F.cross_entropy if split is None else split.cross_entropy

    def cross_entropy_loss(pred: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(pred.reshape(-1, pred.shape[-1]).float(), labels.reshape(-1))

    return cross_entropy_loss


class Trainer:
    """`Trainer.train_step` and `forward_backward_step`: names that outlive a step here do so there."""

    def __init__(
        self, job: Job, model: Transformer, release: TitanRelease, ranks: TitanRanks, scheme: Scheme,
        split: TensorParallel | None, parameters: Sequence[Tensor], optimizer: Optimizer,
    ) -> None:  # fmt: skip
        self.job, self.model, self.release, self.ranks, self.scheme = job, model, release, ranks, scheme
        self.parameters, self.optimizer, self.machine = parameters, optimizer, model.machine
        self.logits: Tensor | None = None
        self.loss_fn: Any = loss_of(split if release.splits_loss else None)
        if job.compile and release.compiles_loss:
            self.loss_fn = Region(self.machine, self.loss_fn)

    def train(self, lengths: Sequence[int]) -> None:
        machine = self.machine
        for step, length in enumerate(lengths):
            machine.step, machine.phase, machine.module = step, Phase.OTHER, ""
            self.optimizer.zero_grad()
            losses = self.forward_backward(length)
            if self.job.max_grad_norm:
                self.scheme.clip(self.parameters)
            machine.phase = Phase.OPTIMIZER
            self.optimizer.step()
            machine.phase, machine.module = Phase.OTHER, ""
        machine.step, machine.phase = len(lengths), Phase.OTHER
        self.optimizer.zero_grad()  # as the next step would
        for module in self.model.modules():
            if isinstance(module, GroupedExperts):
                module.places_kept.clear()
        self.scheme.end()
        del losses
        self.logits = None
        machine.end()

    def forward_backward(self, length: int) -> list[Tensor]:
        losses = []
        for number in range(self.job.grad_accum):
            self.machine.take_turn(number)
            losses.append(self.forward_backward_step(length))
        return losses

    def forward_backward_step(self, length: int) -> Tensor:
        machine, job = self.machine, self.job
        inputs, labels = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(2)]
        whole = self.split_sequence(inputs, labels) if self.ranks.context > 1 else None
        if whole is not None:
            inputs, labels = whole[0].detach(), whole[1].detach()
        machine.phase, machine.in_forward = Phase.FORWARD, True
        with machine.autocasting(self.scheme.autocast):
            pred = self.model(inputs)
            if self.release.keeps_logits:
                pred = self.logits = pred.float()
            with machine.within("loss"):
                loss = self.loss_fn(pred, labels)
        del pred
        backward(loss)
        return loss.detach()

    def split_sequence(self, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        """`context_parallel`: this rank's parts of ids, labels and table, from the front and the back; all of the table
        waits to be put back, and the ids' own memory is kept."""
        machine, table, count = self.machine, self.model.freqs_cis, self.ranks.context
        held: list[Tensor] = []
        restored = table.clone()
        length = inputs.shape[1]
        order = machine.run("arange", (), (length,), INT32)
        numbers = [machine.run("arange", (), (count,), INT64) for _ in range(2)]
        halves = [machine.run("index", (order, number), (length // 2,), INT32) for number in numbers]
        indices = machine.run("stack", halves, (length,), INT32)
        del order, numbers, halves
        for tensor, name in ((inputs, "index"), (labels, "index"), (table, "index_select")):
            dim = 0 if tensor is table else 1
            part = (*tensor.shape[:dim], tensor.shape[dim] // count, *tensor.shape[dim + 1 :])
            chosen = machine.run(name, (tensor, indices), tensor.shape, tensor.dtype)
            held.append(machine.run("clone", (chosen,), part, tensor.dtype))
            if tensor is table:
                del indices
            del chosen
        copy: Any = None
        for part_of in held:
            copy = None
            copy = part_of.clone()
        return [*held, restored, copy, inputs, labels]
