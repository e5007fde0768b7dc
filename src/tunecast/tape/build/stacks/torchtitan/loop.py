"""`Trainer.train_step` and `forward_backward_step` (torchtitan/train.py), without a pipeline.

A pipeline's first stage, or its last, 1F1B or interleaved (torch/distributed/pipelining: schedules.py,
`Schedule1F1B`, `ScheduleInterleaved1F1B`; stage.py).

The first stage waits longest for its gradients: as many micro-batches are under way as there are stages. Interleaved,
twice the ranks behind are, and every rank has as many more as there are ranks for each of its stages but one. FSDP2
gathers weights once a step, gradients of all micro-batches are added up whole, in fp32, and reduced at the end. What is
received has buffers of its own, one a micro-batch, for the whole run.

The last stage has one micro-batch under way (interleaved, one more than its other stages need), and its logits: the
schedule's name for them (`output`) outlives the backward pass into the next forward pass, and where outputs are
returned, those of all micro-batches are kept and put together at the end of a step (stage.py, `output_chunks`;
schedules.py, `_merge_outputs`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import backward, backward_from
from tunecast.tape.build.compiled import Region
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT32, INT32, INT64
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.sharding.tensor import TensorParallel
from tunecast.tape.build.stacks.torchtitan.experts import GroupedExperts
from tunecast.tape.build.stacks.torchtitan.model import Transformer
from tunecast.tape.build.stacks.torchtitan.parallel import TitanFsdp, TitanRanks
from tunecast.tape.build.stacks.torchtitan.releases import TitanRelease
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase

# --------------------------------------------------------------------------------------------------- without a pipeline


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
        for length in machine.steps(lengths):
            self.optimizer.zero_grad()
            losses = self.forward_backward(length)
            if self.job.max_grad_norm:
                self.scheme.clip(self.parameters)
            self.optimizer.take_step()
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


# ----------------------------------------------------------------------------------------------------------- a pipeline


PIPELINE = "pipeline"
STAGES = "torch 2.15 wrote a pipeline's stages anew; those of 2.13 are taken"


class Pipeline(Trainer):
    """`chunks` are the rank's stages: the layers in as many parts, one with an end of the model."""

    buffers: dict[tuple[int, int], tuple[Tensor | None, Tensor | None]]
    outputs: list[Tensor]
    labels: Tensor

    def forward_backward(self, length: int) -> list[Tensor]:
        """Micro-batches are the job's `grad_accum`."""
        machine, job = self.machine, self.job
        ranks, chunks, count = self.ranks.pipeline, job.parallel.virtual_stages, job.grad_accum
        turns = places(count, ranks, chunks)
        behind = ranks - 1 if self.model.first else 0
        ahead = 1 + behind if chunks == 1 else 1 + 2 * behind + (chunks - 1) * min(count, ranks)
        self.prepare(length, chunks, count)
        inputs = machine.run("_to_copy", (), (job.micro_batch * count, length), INT64)
        self.labels, self.outputs = inputs, []
        if self.model.last:
            self.labels = machine.run("_to_copy", (), (job.micro_batch * count, length), INT64)
        under_way: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}
        shared = self.scheme if isinstance(self.scheme, TitanFsdp) else None
        with contextlib.nullcontext() if shared is None else shared.pipelined():
            for now in turns[:ahead]:
                under_way[now] = self.forward(inputs, *now)
            for turn, (place, number) in enumerate(turns):
                chunk = chunks - 1 - place
                self.backward(chunk, number, *under_way.pop((chunk, number)))
                if number == count - 1 and shared is not None:
                    machine.phase = Phase.BACKWARD
                    shared.end_stage(self.modules_of(chunk, chunks))
                for now in turns[turn + ahead : turn + ahead + 1]:
                    under_way[now] = self.forward(inputs, *now)
        machine.phase = Phase.OTHER
        if len(self.outputs) > 1 and self.release.returns_outputs:
            rows, *rest = self.outputs[0].shape
            machine.run("cat", self.outputs, (rows * count, *rest), self.outputs[0].dtype)
        self.outputs = []
        return [machine.run("full", (), (1,), FLOAT32)]

    def modules_of(self, chunk: int, chunks: int) -> set[int]:
        layers = {id(layer) for layer in self.model.chunk(chunk, chunks)}
        if chunk != self.model.end_chunk(chunks):
            return layers
        end = self.model.tok_embeddings if self.model.first else self.model.norm
        return layers | {id(self.model), id(end)}

    def prepare(self, length: int, chunks: int, count: int) -> None:
        """`_prepare_forward_infra`, `_prepare_backward_infra`."""
        if getattr(self, "buffers", None):
            return
        if self.machine.torch >= (2, 15):
            self.machine.guesses[STAGES] = None
        job, ranks = self.job, self.ranks
        shape = (job.micro_batch, length // ranks.context // ranks.tensor, self.model.width)
        dtype = FLOAT32 if job.autocast is None else BFLOAT16
        self.buffers = {
            (chunk, number): (
                self.machine.run("empty", (), shape, dtype) if chunk or not self.model.first else None,
                None if self.is_end(chunk) else self.machine.run("empty", (), shape, dtype),
            )
            for chunk in range(chunks)
            for number in range(count)
        }

    def is_end(self, chunk: int) -> bool:
        """Of the whole model."""
        return self.model.last and chunk == self.job.parallel.virtual_stages - 1

    def exchanged(self, name: str, tensor: Tensor) -> None:
        self.machine.collective_of(name, PIPELINE, 2, tensor.dtype, tensor.numel())

    def forward(self, inputs: Tensor, chunk: int, number: int) -> tuple[Tensor, Tensor | None]:
        machine, job = self.machine, self.job
        machine.phase, machine.in_forward = Phase.FORWARD, True
        machine.module = ""
        given = self.buffers[chunk, number][0]
        if given is None:
            rows = (job.micro_batch, inputs.shape[1] // self.ranks.context)
            h: Any = inputs.alias(rows, None)
        else:
            self.exchanged("recv", given)
            h = given.detach()
            h.requires_grad = True
        source = None if given is None else h
        with machine.autocasting(self.scheme.autocast):
            out = self.model.part(h, chunk, job.parallel.virtual_stages)
            if self.is_end(chunk):
                out = self.loss_of(out)
        if not self.is_end(chunk):
            self.exchanged("send", out)
        machine.in_forward = False
        return out, source

    def loss_of(self, logits: Tensor) -> Tensor:
        """The logits of the micro-batch before go when those of this one are there."""
        if not self.release.returns_outputs:
            self.outputs.clear()
        self.outputs.append(logits.detach())
        rows = (self.job.micro_batch, self.labels.shape[1] // self.ranks.context)
        with self.machine.within("loss"):
            return self.loss_fn(logits, self.labels.alias(rows, None))

    def backward(self, chunk: int, number: int, out: Tensor, source: Tensor | None) -> None:
        gradient = self.buffers[chunk, number][1]
        if gradient is None:
            backward(out)
        else:
            self.exchanged("recv", gradient)
            backward_from(out, gradient.detach())
        if source is not None and source.grad is not None:
            self.exchanged("send", source.grad)
            source.grad = None


def places(count: int, ranks: int, chunks: int) -> list[tuple[int, int]]:
    """Which part and which micro-batch each of a rank's forward passes is: as many micro-batches as there are ranks of
    one part, then of the next."""
    return [
        (chunk, number)
        for first in range(0, count, ranks)
        for chunk in range(chunks)
        for number in range(first, min(first + ranks, count))
    ]
