"""The operations of one steady optimizer step, for whoever prices them: each layer's once, with how often it comes.

A step's time needs no allocations and not every layer. The closed form runs two steps of a model with a few layers; the
second is like all that follow, and what its middle layers do is done as often as the whole model has such layers.

    Section(FORWARD, 1, embed, layer 0, layer 1)   Section(FORWARD, 29, layer 2)   Section(FORWARD, 1, layer 31, head)

Micro-batches after the first add to gradients that exist, and with the last ones cards exchange them: the second of
three stands for all in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from tunecast.job.job import Job
from tunecast.tape.build.short import fold_job
from tunecast.tape.card import Card
from tunecast.tape.fold import Folded
from tunecast.tape.layers import NotRepeating, Sweep, longer, sweeps_of
from tunecast.tape.op import Begin, Event, Op, Phase, Tape
from tunecast.tape.shorten import Rhythm

MICRO_BATCHES = 3
"""As many are built: the first, one that stands for those in between, the last."""


class Section(NamedTuple):
    """`ops` run `times` times in a row: a layer for its copies, or what is outside the layers once."""

    phase: Phase
    times: int
    ops: tuple[Op, ...]


class Step(NamedTuple):
    """One steady optimizer step, all its micro-batches."""

    sections: tuple[Section, ...]

    def ops(self) -> Iterator[tuple[Op, int]]:
        """Every operation, with how often it runs."""
        return ((op, section.times) for section in self.sections for op in section.ops)

    @property
    def flops(self) -> int:
        return sum(op.flops * times for op, times in self.ops())

    @property
    def model_flops(self) -> int:
        """Without what a backward pass computes for the second time."""
        return sum(
            op.flops * section.times
            for section in self.sections
            for op in section.ops
            if section.phase is not Phase.BACKWARD or op.by_engine
        )

    @property
    def kernels(self) -> int:
        return sum(op.kernels * times for op, times in self.ops())


def timed_steps(job: Job, config: Mapping[str, Any], card: Card) -> dict[int, Step]:
    """By padded length: of `lengths` where the job lists them, else of `seq_len` alone."""
    short = replace(job, grad_accum=min(MICRO_BATCHES, job.grad_accum))
    return steps_of_fold(fold_job(short, config, card, keeps_ops=True), job.grad_accum)


def steps_of_fold(folded: Folded, grad_accum: int) -> dict[int, Step]:
    """Of a run that was folded for memory: one building serves both questions."""
    short = folded.short
    if short is None:
        raise ValueError("a run that was folded without its operations has no time")
    steps, made = short.tape.steps(), {}
    for number, length in enumerate(short.lengths):
        if (number or len(short.lengths) == 1) and length not in made:
            made[length] = step_of(steps[number], short.rhythm, grad_accum)
    return made


def step_of(events: Sequence[Event], rhythm: Rhythm | None, grad_accum: int = 1) -> Step:
    """The events of a step, folded in `rhythm` (None: every layer is there), with so many micro-batches."""
    sections = list(_sections([event for event in events if isinstance(event, (Op, Begin))], rhythm))
    first, *following, rest = micro_batches(sections)
    if len(following) + 1 == grad_accum or not following:
        return Step(tuple(sections))
    again, last = following[0], following[1:]
    middle = (section for _ in range(grad_accum - 1 - len(last)) for section in again)
    return Step((*first, *middle, *(section for part in last for section in part), *rest))


def micro_batches(sections: Sequence[Section]) -> list[list[Section]]:
    """One list a micro-batch, and last what comes after them all.

    A forward pass after a backward one begins anew; what runs between them, such as the next batch's copy, is the later
    one's.
    """
    phases = [section.phase for section in sections]
    ends = [i for i in range(1, len(phases)) if phases[i - 1] is Phase.BACKWARD and phases[i] is not Phase.BACKWARD]
    starts = [0, *(end for end in ends if Phase.FORWARD in phases[end:])]
    after = len(phases) if not ends or phases[-1] is Phase.BACKWARD else ends[-1]
    bounds = [*starts, after]
    return [*(list(sections[a:b]) for a, b in pairwise(bounds)), list(sections[after:])]


def _sections(events: Sequence[Op | Begin], rhythm: Rhythm | None) -> Iterator[Section]:
    """Consecutive operations that run once in one phase are one section."""
    phase, once = Phase.OTHER, []  # type: tuple[Phase, list[Op]]
    for times, part in _parts(events, rhythm):
        if times > 1 and once:
            yield Section(phase, 1, tuple(once))
            once = []
        for event in part:
            if isinstance(event, Op):
                once.append(event)
            elif isinstance(event, Begin) and event.phase is not phase:
                if once:
                    yield Section(phase, times, tuple(once))
                phase, once = event.phase, []
        if times > 1:
            yield Section(phase, times, tuple(once))
            once = []
    if once:
        yield Section(phase, 1, tuple(once))


def _parts(events: Sequence[Op | Begin], rhythm: Rhythm | None) -> Iterator[tuple[int, Sequence[Event]]]:
    if rhythm is None:
        yield 1, events
        return
    for sweep in sweeps_of(Tape(tuple(events)), rhythm.small):
        yield from _sweep_parts(sweep, rhythm)


def _sweep_parts(sweep: Sweep, rhythm: Rhythm) -> Iterator[tuple[int, Sequence[Event]]]:
    """A layer's turn once; that of the layers that repeat, with how often they do."""
    start, end, times = rhythm.head, rhythm.head + rhythm.period, rhythm.copies + 1
    repeats: list[Event] = []
    for run, layer in longer(sweep, rhythm.head, rhythm.period, 0):
        if layer is not None and start <= layer < end:
            repeats.extend(run.events)
            continue
        if repeats:
            yield times, repeats
            repeats = []
        yield 1, run.events
    if repeats:
        yield times, repeats


__all__ = ["NotRepeating", "Section", "Step", "micro_batches", "step_of", "steps_of_fold", "timed_steps"]
