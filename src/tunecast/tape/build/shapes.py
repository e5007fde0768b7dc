"""One program for many sizes and cards: what was built for one job serves others that differ in these alone.

A planner asks for the same model and method over and over, with other sizes on other cards; building the program takes
fifty times as long as computing its sizes. So it is built with symbols (`symbols.py`) for the batch, the length, the
rank and what code can ask of a card, and every later job that answers its questions alike (is the batch 1, is a row
longer than the window, has the card Hopper's kernels) has its rows and operations, with other sizes.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from operator import itemgetter
from typing import Any, NamedTuple

from tunecast.job.job import Job
from tunecast.records import fields
from tunecast.tape.card import Card
from tunecast.tape.fold import Short
from tunecast.tape.program import BEGIN, EMPTY_CACHE, FREE, Program
from tunecast.tape.symbols import Asked

MOST_ROWS = 2_000_000
"""Of programs kept at a time, at about a hundred bytes each."""
MOST_KINDS = 1000
"""Of jobs, that are remembered to have been asked for."""
MARKS = sorted((BEGIN, EMPTY_CACHE, FREE))
NAMES = "batch, length, longest, rank, sms, capability, card_bytes"
"""The symbols: `length` is the rows', `longest` what the job says the longest are."""
APART = ("allocator", "data", "hardware", "id", "lora", "micro_batch", "run", "seq_len")
"""What a job's program does not depend on, or not alone: see `key_of`."""


class Built(NamedTuple):
    program: Program
    guesses: tuple[str, ...]
    assumptions: tuple[str, ...]
    short: Short | None = None


class Paper(NamedTuple):
    """What a program is built of: numbers, or symbols that `asked` hears of."""

    job: Job
    length: int
    card: Card
    asked: Asked | None = None


class Shape:
    """A program whose sizes are expressions. In its rows a size is the expression's place among the distinct ones, and
    a mark, which is negative, its own place from their end."""

    def __init__(self, made: Built, asked: Asked) -> None:
        self._made = made
        self._answers = tuple(asked.answers.values())
        self._answered = asked.computed(asked.answers, NAMES)
        self._sizes = asked.computed([*asked.sizes, *map(str, MARKS)], NAMES)
        self.rows = len(made.program.sizes)
        self._row_sizes = itemgetter(*made.program.sizes, 0, 0)
        self._last: tuple[tuple[Any, ...], Program] | None = None

    def of(self, values: tuple[Any, ...]) -> Built | None:
        try:
            if self._answered(*values) != self._answers:
                return None
        except (ArithmeticError, LookupError, ValueError):  # a question that comes up after other answers only
            return None
        sizes = self._sizes(*values)
        if self._last is not None and self._last[0] == sizes:  # another card, another length that is not in memory
            program = self._last[1]
        else:
            program = self._made.program.with_sizes(list(self._row_sizes(sizes)[: self.rows]))
            self._last = sizes, program
        short = self._made.short
        if short is not None:
            short = short._replace(values=values, lengths=(values[1],) * len(short.lengths))
        return self._made._replace(program=program, short=short)


_kinds: dict[Any, list[Shape]] = {}
"""Of jobs that differ in sizes and cards alone, the shapes there are; the one asked for last is the last."""
_plain: set[int] = set()
"""Hashes of kinds that cannot be built with symbols."""


def built(
    job: Job, length: int, config: Mapping[str, Any], card: Card, keeps_ops: bool, build_as: Callable[[Paper], Built]
) -> Built:
    """What `build_as` makes of the job with rows of `length`, numbers or symbols."""
    plain = Paper(job, length, card)
    if job.lengths:
        return build_as(plain)
    key = key_of(job, config, keeps_ops)
    if hash(key) in _plain:
        return build_as(plain)
    shapes = _kinds[key] = _kinds.pop(key, [])  # now the youngest
    values = values_of(plain)
    for shape in shapes:
        made = shape.of(values)
        if made is not None:
            return made
    asked = Asked()
    try:
        with undisturbed():
            shapes.append(Shape(build_as(with_symbols(plain, asked)), asked))
        _forget()
    except Exception:  # somewhere a plain number is needed, or the job is refused
        made = build_as(plain)
        _plain.add(hash(key))
        return made
    made = shapes[-1].of(values)
    assert made is not None
    return made


def _forget() -> None:
    """What was not asked for the longest."""
    rows = sum([shape.rows for made in _kinds.values() for shape in made])
    while len(_kinds) > 1 and (rows > MOST_ROWS or len(_kinds) > MOST_KINDS):
        rows -= sum([shape.rows for shape in _kinds.pop(next(iter(_kinds)))])


def key_of(job: Job, config: Mapping[str, Any], keeps_ops: bool) -> tuple[Any, ...]:
    """What of a job decides what is run, but for sizes and the card.

    Of `data` it is whether rows are packed; of `hardware` how many cards there are. How a run is saved, evaluated and
    paid for is outside its steps, and the allocator takes what the program asks for.
    """
    rest = tuple([getattr(job, f.name) for f in fields(job) if f.name not in APART])
    lora = tuple([getattr(job.lora, f.name) for f in fields(job.lora) if f.name != "rank"])
    cards = job.data.packing, job.hardware.gpus, job.hardware.nodes
    return rest, lora, cards, json.dumps(config, sort_keys=True), keeps_ops


def values_of(paper: Paper) -> tuple[Any, ...]:
    """As `NAMES` has them."""
    job, card = paper.job, paper.card
    lengths = paper.length, job.seq_len
    return (job.micro_batch, *lengths, job.lora.rank, card.sm_count, card.capability, card.total_bytes)


def with_symbols(paper: Paper, asked: Asked) -> Paper:
    """Not made as jobs are, which are checked."""
    job, lora, card = copy(paper.job), copy(paper.job.lora), copy(paper.card)
    object.__setattr__(lora, "rank", asked.symbol("rank", lora.rank))
    object.__setattr__(job, "lora", lora)
    object.__setattr__(job, "micro_batch", asked.symbol("batch", job.micro_batch))
    object.__setattr__(job, "seq_len", asked.symbol("longest", job.seq_len))
    object.__setattr__(card, "sm_count", asked.symbol("sms", card.sm_count))
    object.__setattr__(card, "capability", asked.fact("capability", card.capability))
    object.__setattr__(card, "total_bytes", asked.fact("card_bytes", card.total_bytes))
    return Paper(job, asked.symbol("length", paper.length), card, asked)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the search for cycles, which finds none in a tape's thousands of small objects and takes a tenth of the
    time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


__all__ = ["Built", "Paper", "Shape", "built", "key_of", "values_of", "with_symbols"]
