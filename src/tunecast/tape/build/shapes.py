"""One program for many batches, lengths and ranks: what was built for one job serves others that differ in these alone.

A planner asks for the same model, method and card over and over, with other sizes; building the program takes fifty
times as long as computing its sizes. So the second or third such job is built with symbols (`symbols.py`) for them, and
every later one that answers its questions alike (is the batch 1, is a row longer than the window, into how many
parts does the head's kernel fall) has its rows, with other sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields
from typing import Any, NamedTuple

from tunecast.job.job import Job
from tunecast.tape.card import Card
from tunecast.tape.fold import Short
from tunecast.tape.op import Begin, Event, Op
from tunecast.tape.program import BEGIN, EMPTY_CACHE, FREE, Program
from tunecast.tape.symbols import Asked, has_symbols

MOST_SHAPES = 64
"""Kept at a time; each holds a megabyte or two."""
MOST_KINDS = 1000
"""Of jobs, that are remembered to have been asked for."""
PATIENCE = {False: 1, True: 3}
"""How many jobs are built plainly before one is with symbols, without and with its operations: about as many as take as
long, so that in the worst case twice the time is spent."""
MARKS = sorted((BEGIN, EMPTY_CACHE, FREE))
NAMES = "batch, length, rank"
APART = ("id", "lora", "micro_batch", "seq_len")
"""What a job's program does not depend on, or not alone."""


Sizes = Callable[[Any], int] | None


class Built(NamedTuple):
    program: Program
    guesses: tuple[str, ...]
    assumptions: tuple[str, ...]
    short: Short | None = None


class Shape:
    """A program whose sizes are expressions. In its rows a size is the expression's place among the distinct ones, and
    a mark, which is negative, its own place from their end."""

    def __init__(self, made: Built, asked: Asked) -> None:
        self._made = made
        self._events = [] if made.short is None else [
            (event, _places(event, asked)) for event in made.short.tape.events if isinstance(event, (Op, Begin))
        ]  # fmt: skip
        """Of the tape that comes along for its operations."""
        self._answers = tuple(asked.answers.values())
        self._answered = asked.computed(asked.answers, NAMES)
        self._sizes = asked.computed([*asked.sizes, *map(str, MARKS)], NAMES)

    def of(self, job: Job) -> Built | None:
        values = job.micro_batch, job.seq_len, job.lora.rank
        if self._answered(*values) != self._answers:
            return None
        sizes = self._sizes(*values)
        program = self._made.program.with_sizes([sizes[n] for n in self._made.program.sizes])
        short = self._made.short
        if short is not None:
            tape = short.tape.with_events(_computed(event, places, sizes) for event, places in self._events)
            short = short._replace(tape=tape, lengths=(job.seq_len,) * len(short.lengths))
        return self._made._replace(program=program, short=short)


Places = tuple[tuple[int, int], ...]
"""A field of an operation, and the place of its value."""


def _places(event: Event, asked: Asked) -> Places:
    """Of what is computed in it."""
    return tuple((field, asked.place(value)) for field, value in enumerate(event) if has_symbols(value))


def _computed(event: Event, places: Places, sizes: tuple[Any, ...]) -> Event:
    if not places:
        return event
    fields: list[Any] = list(event)
    for field, place in places:
        fields[field] = sizes[place]
    return Op._make(fields)


class Kind:
    """Jobs that differ in sizes alone."""

    __slots__ = ("missed", "shapes")

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.missed = 0
        """Jobs since the last shape was made that none of them is for."""


_kinds: dict[Any, Kind] = {}
_plain: set[int] = set()
"""Hashes of kinds that cannot be built with symbols."""


def built(
    job: Job, config: Mapping[str, Any], card: Card, keeps_ops: bool, build_as: Callable[[Job, Sizes], Built]
) -> Built:
    """What `build_as` makes of the job, or of the job with symbols; it writes a size down as its last argument does."""
    if job.lengths:
        return build_as(job, None)
    rest = tuple(getattr(job, f.name) for f in fields(job) if f.name not in APART)
    lora = tuple(getattr(job.lora, f.name) for f in fields(job.lora) if f.name != "rank")
    key = rest, lora, json.dumps(config, sort_keys=True), card, keeps_ops
    if hash(key) in _plain:
        return build_as(job, None)
    kind = _kinds[key] = _kinds.pop(key, Kind())  # now the youngest
    while len(_kinds) > 1 and (
        len(_kinds) > MOST_KINDS or sum(len(one.shapes) for one in _kinds.values()) > MOST_SHAPES
    ):
        del _kinds[next(iter(_kinds))]
    for shape in kind.shapes:
        made = shape.of(job)
        if made is not None:
            return made
    kind.missed += 1
    if kind.missed <= PATIENCE[keeps_ops]:
        return build_as(job, None)
    kind.missed, asked = 0, Asked()
    try:
        kind.shapes.append(Shape(build_as(with_symbols(job, asked), asked.place), asked))
    except Exception:  # somewhere a plain number is needed; what else is wrong will be so again
        _plain.add(hash(key))
        return build_as(job, None)
    made = kind.shapes[-1].of(job)
    assert made is not None
    return made


def with_symbols(job: Job, asked: Asked) -> Job:
    """Not made as jobs are, which are checked."""
    on_paper, lora = copy(job), copy(job.lora)
    object.__setattr__(lora, "rank", asked.symbol("rank", job.lora.rank))
    object.__setattr__(on_paper, "lora", lora)
    object.__setattr__(on_paper, "micro_batch", asked.symbol("batch", job.micro_batch))
    object.__setattr__(on_paper, "seq_len", asked.symbol("length", job.seq_len))
    return on_paper
