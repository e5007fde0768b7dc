"""`Trainer.train_step` and `forward_backward_step` (torchtitan/train.py), without a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build import ops
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.compiled import Region
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.sharding.tensor import TensorParallel
from tunecast.tape.build.stacks.torchtitan.model import Transformer
from tunecast.tape.build.stacks.torchtitan.parallel import Ranks
from tunecast.tape.build.stacks.torchtitan.releases import Release
from tunecast.tape.build.tensor import FLOAT32, INT64, Tensor
from tunecast.tape.op import Phase


def loss_of(split: TensorParallel | None) -> Callable[[Tensor, Tensor], Tensor]:
    cross_entropy = ops.cross_entropy if split is None else split.cross_entropy

    def cross_entropy_loss(pred: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(ops.to(ops.reshape(pred, -1, pred.shape[-1]), FLOAT32), ops.reshape(labels, -1))

    return cross_entropy_loss


class Trainer:
    """`Trainer.train_step` and `forward_backward_step`: names that outlive a step here do so there."""

    def __init__(
        self, job: Job, model: Transformer, release: Release, ranks: Ranks, scheme: Scheme,
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
        self.scheme.end()
        del losses
        self.logits = None
        machine.end()

    def forward_backward(self, length: int) -> list[Tensor]:
        return [self.forward_backward_step(length) for _ in range(self.job.grad_accum)]

    def forward_backward_step(self, length: int) -> Tensor:
        machine, job = self.machine, self.job
        inputs, labels = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(2)]
        if self.ranks.context > 1:  # `context_parallel`: each rank takes its part, and drops the rest
            part = (job.micro_batch, length // self.ranks.context)
            inputs, labels = [machine.run("index_select", (whole,), part, INT64) for whole in (inputs, labels)]
        machine.phase, machine.in_forward = Phase.FORWARD, True
        with machine.autocasting(self.scheme.autocast):
            pred = self.model(inputs)
            if self.release.keeps_logits:
                pred = self.logits = ops.to(pred, FLOAT32)
            with machine.within("loss"):
                loss = self.loss_fn(pred, labels)
        del pred
        backward(loss)
        return loss.detached()  # type: ignore[no-any-return]
