"""A pipeline's first stage, 1F1B or interleaved (torch/distributed/pipelining: schedules.py, `Schedule1F1B`,
`ScheduleInterleaved1F1B`; stage.py).

The first stage waits longest for its gradients: as many micro-batches are under way as there are stages. FSDP2 gathers
weights once a step, gradients of all micro-batches are added up whole, in fp32, and reduced at the end. What is
received has buffers of its own, one a micro-batch, for the whole run.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tunecast.tape.build.autograd import backward_from
from tunecast.tape.build.stacks.torchtitan.loop import Trainer
from tunecast.tape.build.stacks.torchtitan.parallel import Shared
from tunecast.tape.build.tensor import BFLOAT16, FLOAT32, INT64, Tensor
from tunecast.tape.op import Phase

GROUP = "pipeline"


class Pipeline(Trainer):
    """`chunks` are the rank's stages: the layers in as many parts, the first with the embedding."""

    buffers: dict[tuple[int, int], tuple[Tensor | None, Tensor]]

    def forward_backward(self, length: int) -> list[Tensor]:
        """Micro-batches are the job's `grad_accum`."""
        machine, job = self.machine, self.job
        ranks, chunks, count = self.ranks.pipeline, job.parallel.virtual_stages, job.grad_accum
        turns = places(count, ranks, chunks)
        ahead = ranks if chunks == 1 else (chunks - 1) * min(count, ranks) + 2 * (ranks - 1) + 1
        self.prepare(length, chunks, count)
        inputs = machine.run("_to_copy", (), (job.micro_batch * count, length), INT64)
        under_way: dict[tuple[int, int], tuple[Tensor, Tensor | None]] = {}
        shared = self.scheme if isinstance(self.scheme, Shared) else None
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
        return [machine.run("full", (), (1,), FLOAT32)]

    def modules_of(self, chunk: int, chunks: int) -> set[int]:
        layers = {id(layer) for layer in self.model.chunk(chunk, chunks)}
        return layers | {id(self.model), id(self.model.tok_embeddings)} if chunk == 0 else layers

    def prepare(self, length: int, chunks: int, count: int) -> None:
        """`_prepare_forward_infra`, `_prepare_backward_infra`."""
        if getattr(self, "buffers", None):
            return
        job, ranks = self.job, self.ranks
        width = self.model.tok_embeddings.weight.shape[-1]
        shape = (job.micro_batch, length // ranks.context // ranks.tensor, width)
        dtype = FLOAT32 if job.autocast is None else BFLOAT16
        self.buffers = {
            (chunk, number): (
                self.machine.run("empty", (), shape, dtype) if chunk else None,
                self.machine.run("empty", (), shape, dtype),
            )
            for chunk in range(chunks)
            for number in range(count)
        }

    def exchanged(self, name: str, tensor: Tensor) -> None:
        self.machine.collective(name, GROUP, 2, tensor.dtype, tensor.nbytes, tensor.nbytes, tensor.numel())

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
            h = given.detached()
            h.requires_grad = True
        source = None if given is None else h
        with machine.autocasting(self.scheme.autocast):
            out = self.model.part(h, chunk, job.parallel.virtual_stages)
        self.exchanged("send", out)
        machine.in_forward = False
        return out, source

    def backward(self, chunk: int, number: int, out: Tensor, source: Tensor | None) -> None:
        gradient = self.buffers[chunk, number][1]
        self.exchanged("recv", gradient)
        backward_from(out, gradient.detached())
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
