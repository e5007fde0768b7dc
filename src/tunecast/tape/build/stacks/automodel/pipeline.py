"""A step of a pipeline's stage: the first, which waits longest for its gradients, or the last, which has the logits.

As many micro-batches are under way on the first stage as there are stages, on the last one. Interleaved
(`ScheduleInterleaved1F1B`), twice the ranks behind are, and every rank has as many more parts of the model under way as
there are ranks for each of its stages but one; here whole micro-batches of a rank stand for its parts of them.

Source   components/distributed/pipelining/autopipeline.py; torch/distributed/pipelining/schedules.py.
Ignored  buffers that a stage receives into, which it has for every micro-batch of a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.sharding.pipelined import PipelinedFsdp2
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase

STEADY = 2
"""Micro-batches after which every further one does the same: nothing is left of one whose backward pass is over."""


def pipelined(job: Job, model: Any, forward: Callable[[], Any]) -> list[Tensor]:
    """`forward` gives the batch, the outputs and the loss of one micro-batch, or its hidden states summed up."""
    machine, scheme = model.machine, model.machine.scheme
    ahead = under_way(job, is_first=machine.ends is None or machine.ends.embedding)
    count = min(job.grad_accum, ahead + STEADY)
    waiting: list[tuple[Sequence[Tensor], Tensor, Tensor]] = []
    losses = []
    shared = scheme if isinstance(scheme, PipelinedFsdp2) else None
    with contextlib.nullcontext() if shared is None else shared.pipelined():
        for number in range(count + ahead):
            if len(waiting) == ahead or number >= count:
                if not waiting:
                    break
                batch, outputs, loss = waiting.pop(0)
                losses.append(loss.detach().clone())
                backward(loss)
                del batch, outputs, loss
            if number < count:
                waiting.append(forward())
        if shared is not None:
            machine.phase = Phase.BACKWARD
            shared.end_stage({id(unit.modules[0]) for unit in shared.sharder.units})
    machine.phase = Phase.OTHER
    return losses


def under_way(job: Job, is_first: bool) -> int:
    """Micro-batches a stage has begun and not ended."""
    stages, chunks, count = job.parallel.pipeline, job.parallel.virtual_stages, job.grad_accum
    behind = stages - 1 if is_first else 0
    parts = 1 + behind if chunks == 1 else 1 + 2 * behind + (chunks - 1) * min(count, stages)
    return min(count, -(-parts // chunks))
