"""The operations of one steady optimizer step, for whoever prices them: each layer's once, with how often it comes.

A step's time needs no allocations and not every layer. The closed form runs two steps of a model with a few layers; the
second is like all that follow, and what its middle layers do is done as often as the whole model has such layers.

Micro-batches after the first add to gradients that exist, and with the last ones cards exchange them: the second of
three stands for all in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.job import Job
from tunecast.records import replace
from tunecast.tape.build.short import fold_job, short_job
from tunecast.tape.card import Card
from tunecast.tape.fold import Folded, Short
from tunecast.tape.layers import NotRepeating
from tunecast.tape.shorten import steps_of, with_few_micro_batches
from tunecast.tape.step import Layout, Section, Step, Table, micro_batches, step_of

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
        found |= _steps(short_job(alone, config, card, length), job.grad_accum)
    return found


def recompiles(job: Job) -> bool:
    """Where code is compiled, a second length makes it another: compiled for lengths that vary."""
    return job.compile or job.stack in COMPILING


COMPILING = ("unsloth", "torchtune", "torchtitan")
"""Stacks that compile parts whatever the job says."""


def steps_of_fold(folded: Folded, grad_accum: int) -> dict[int, Step]:
    """Of a run that was folded for memory: one building serves both questions."""
    if folded.short is None:
        raise ValueError("a run that was folded without its operations has no time")
    return _steps(folded.short, grad_accum)


def _steps(short: Short, grad_accum: int) -> dict[int, Step]:
    made: dict[int, Step] = {}
    for number, length in enumerate(short.lengths):
        if (number or len(short.lengths) == 1) and length not in made:
            made[length] = short.pattern.step(number, grad_accum, short.values)
    return made


__all__ = [
    "Layout", "NotRepeating", "Section", "Step", "Table", "micro_batches", "step_of", "steps_of_fold", "timed_steps",
]  # fmt: skip
