"""The operations of one steady optimizer step, for whoever prices them: each layer's once, with how often it comes.

A step's time needs no allocations and not every layer. The closed form runs two steps of a model with a few layers; the
second is like all that follow, and what its middle layers do is done as often as the whole model has such layers.

Micro-batches after the first add to gradients that exist, and with the last ones cards exchange them: the second of
three stands for all in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.shardings import is_spread
from tunecast.job.stacks import stack_of
from tunecast.records import replace
from tunecast.tape.build.job_runs import evaluation_run, fold_job, operations_of
from tunecast.tape.build.request import Contents
from tunecast.tape.card import Card
from tunecast.tape.fold import Folded, Operations
from tunecast.tape.op import Phase
from tunecast.tape.shorten import steps_of, with_few_micro_batches
from tunecast.tape.step import Step

MICRO_BATCHES = 3
"""As many show all there is: the first, one that stands for those in between, the last."""


def timed_steps(job: Job, config: Mapping[str, Any], card: Card) -> dict[int, Step]:
    """By padded length: of `lengths` where the job lists them, else of `seq_len` alone."""
    short = with_few_micro_batches(job)  # as memory is asked for: one structure serves both
    if job.lengths is None or recompiles(job):
        return steps_of_fold(fold_job(short, config, card, keeps_ops=True, for_time=True), job.grad_accum)
    # a step's operations are those of its own length, whatever came before: one structure serves them all
    run = steps_of(job)
    alone = replace(short, lengths=None, seq_len=max(run))
    found: dict[int, Step] = {}
    for length in dict.fromkeys(run[1:]):
        found |= _steps(operations_of(alone, config, card, length), job.grad_accum)
    return found


def steps_alone(job: Job, config: Mapping[str, Any], card: Card) -> dict[int, Step]:
    """Of rows of one length, without what is built for memory alone: most of what generating is."""
    return _steps(operations_of(with_few_micro_batches(job), config, card, job.seq_len), job.grad_accum)


def evaluation_step(job: Job, config: Mapping[str, Any], card: Card, batch: int, length: int) -> Step:
    """One batch of an evaluation. Of models spread over cards, and of stacks whose evaluation is not written down, the
    forward pass of training."""
    if not is_spread(job):
        with contextlib.suppress(Unsupported):
            run = evaluation_run(job, config, card, batch, length, Contents.OPERATIONS)
            assert run.operations is not None
            return _steps(run.operations, 1)[length]
    one = replace(job, lengths=None, seq_len=length, micro_batch=batch, grad_accum=1)
    sections = next(iter(timed_steps(one, config, card).values())).sections
    return Step(tuple(section for section in sections if section.phase is Phase.FORWARD))


def recompiles(job: Job) -> bool:
    """Where code is compiled, a second length makes it another: compiled for lengths that vary."""
    return job.compile or stack_of(job).compiles_always


def steps_of_fold(folded: Folded, grad_accum: int) -> dict[int, Step]:
    """Of a run that was folded for memory: one building serves both questions."""
    if folded.operations is None:
        raise ValueError("a run that was folded without its operations has no time")
    return _steps(folded.operations, grad_accum)


def _steps(operations: Operations, grad_accum: int) -> dict[int, Step]:
    steps: dict[int, Step] = {}
    if operations.cycle > 1:
        numbers = range(1, operations.cycle + 1)  # the first step is like none, the one after a cycle like it else
        each = [operations.pattern.step(number, grad_accum, operations.values) for number in numbers]
        sections = [section for step in each for section in step.sections]
        return {operations.lengths[0]: Step(sections, len(each))}
    for number, length in enumerate(operations.lengths):
        if (number or len(operations.lengths) == 1) and length not in steps:
            steps[length] = operations.pattern.step(number, grad_accum, operations.values)
    return steps
