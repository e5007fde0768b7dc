"""One program for many sizes and cards: what was built for one job serves others that differ in these alone.

A planner asks for the same model and method over and over, with other sizes on other cards; building the program takes
fifty times as long as computing its sizes. So it is built with symbols (`symbols.py`) for the batch, the length, the
rank, the number of cards and what code can ask of one, and every later job that answers its questions alike (is the
batch 1, is a row longer than the window, has the card Hopper's kernels) has its rows and operations, with other sizes.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.records import fields, replace_unchecked
from tunecast.tape.build.written import TURN
from tunecast.tape.card import Card
from tunecast.tape.columns import gathered, numbers
from tunecast.tape.fold import Short
from tunecast.tape.program import BEGIN, EMPTY_CACHE, FREE, Program
from tunecast.tape.symbols import Asked

MOST_ROWS = 4_000_000
"""Of programs kept at a time, at about a hundred bytes each."""
MOST_KINDS = 1000
"""Of jobs, that are remembered to have been asked for."""
MARKS = sorted((BEGIN, EMPTY_CACHE, FREE))
NAMES = "batch, length, longest, rank, sms, capability, card_bytes, gpus, nodes, padding"
"""The symbols: `length` is the rows', `longest` what the job says the longest are; `gpus` of each of `nodes`; `padding`
the tokens of a batch that have no label."""
APART = ("allocator", "data", "given", "hardware", "id", "lora", "micro_batch", "run", "seq_len")
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
    masked: bool = False
    """Attention is told of padding, or of samples that share a row."""
    evaluates: bool = False
    """Not a training step, but a batch that is evaluated on."""
    padding: int = 0
    """Tokens that have no label, where the loss leaves them out."""


class Answers:
    """What was asked on the way, and what came out: who answers the same is done by the same."""

    def __init__(self, asked: Asked) -> None:
        self._answers = tuple(asked.answers.values())
        self._answered = asked.computed(asked.answers, NAMES)

    def are_those_of(self, values: tuple[Any, ...]) -> bool:
        try:
            return self._answered(*values) == self._answers
        except (ArithmeticError, LookupError, ValueError):  # a question that comes up after other answers only
            return False


class Refused:
    """A job that no program could be built of, for a reason that holds for all that answer its questions alike."""

    rows = 0

    def __init__(self, asked: Asked, error: TunecastError) -> None:
        self._answers, self._error = Answers(asked), (type(error), error.message, error.field)

    def of(self, values: tuple[Any, ...], rows: bool = True) -> None:
        if self._answers.are_those_of(values):
            error, message, field = self._error  # made anew: a raised one holds all that was built until then
            raise error(message, field=field)


class Shape:
    """A program whose sizes are expressions. In its rows a size is the expression's place among the distinct ones, and
    a mark, which is negative, its own place from their end."""

    def __init__(self, made: Built, asked: Asked) -> None:
        self._made = made
        self._answers = Answers(asked)
        self._sizes = asked.computed([*asked.sizes, *map(str, MARKS)], NAMES)
        self.rows = len(made.program.sizes)
        told = numbers(made.program.sizes)
        several = max(told, default=0) >= TURN
        self.turns = numbers([place // TURN if place > 0 else 0 for place in told]) if several else None
        """Of each row that asks for memory, whose micro-batch of its step it is about; None: all of the first."""
        self.places = numbers([place % TURN if place > 0 else place for place in told]) if several else told
        self._last: tuple[tuple[Any, ...], Program] | None = None
        self.tokens = 0
        """Of the micro-batch it was built for, where that was one of many."""

    def of(self, values: tuple[Any, ...], rows: bool = True) -> Built | None:
        """None where its questions have other answers. Without `rows` the program's sizes are not computed."""
        if not self._answers.are_those_of(values):
            return None
        program = self._program(values) if rows else self._made.program
        short = self._made.short
        if short is not None:
            short = short._replace(values=values, lengths=(values[1],) * len(short.lengths))
        return self._made._replace(program=program, short=short)

    @property
    def program(self) -> Program:
        """Its rows, whose sizes are no numbers of bytes."""
        return self._made.program

    def serves(self, values: tuple[Any, ...]) -> bool:
        return self._answers.are_those_of(values)

    def sizes(self, values: tuple[Any, ...]) -> tuple[int, ...]:
        """What the expressions and, at the end, the marks come to."""
        return self._sizes(*values)

    def _program(self, values: tuple[Any, ...]) -> Program:
        sizes = self._sizes(*values)
        if self._last is None or self._last[0] != sizes:  # on another card they are mostly the same
            self._last = sizes, self._made.program.with_sizes(gathered(sizes, self.places))
        return self._last[1]


_kinds: dict[Any, list[Shape | Refused]] = {}
"""Of jobs that differ in sizes and cards alone, the shapes there are; the one asked for last is the last."""
_plain: set[int] = set()
"""Hashes of kinds that cannot be built with symbols."""
_only_numbers = False


@contextmanager
def only_numbers() -> Iterator[None]:
    """For who asks once: symbols take a third longer, and serve nobody then."""
    global _only_numbers
    was, _only_numbers = _only_numbers, True
    try:
        yield
    finally:
        _only_numbers = was


def built(
    job: Job, config: Mapping[str, Any], card: Card, keeps_ops: bool, build_as: Callable[[Paper], Built]
) -> Built:
    """What `build_as` makes of the job, of numbers or symbols."""
    plain = Paper(job, job.seq_len, card)
    if job.lengths or _only_numbers:
        with undisturbed():
            return build_as(plain)
    key = key_of(job, config, keeps_ops)  # what was built with its operations serves who does not ask for them, too
    keys = [key] if keeps_ops else [key, key_of(job, config, True)]
    return _served(keys, plain, rows=True) or _made(key, plain, build_as, rows=True)


class Shapes:
    """The structures of one job, by the rows and the length of its micro-batches."""

    def __init__(
        self, job: Job, config: Mapping[str, Any], card: Card, build_as: Callable[[Paper], Built], most: int,
        masked: bool, evaluates: bool,
    ) -> None:  # fmt: skip
        self._plain = Paper(job, job.seq_len, card, masked=masked, evaluates=evaluates)
        self._build_as, self._most = build_as, most
        self._key = (*key_of(job, config, False), masked, evaluates)
        self._rest = values_of(self._plain)[2:-1]
        self._known: list[Shape] = []
        for key in (
            self._key,
            *(() if masked or evaluates else (key_of(job, config, False), key_of(job, config, True))),
        ):
            self._known += [shape for shape in _kinds.get(key, ()) if isinstance(shape, Shape)]
        self._newly = 0
        self.strangers = 0
        """Micro-batches that another structure stands in for, since there are too many."""

    def of(self, rows: int, length: int, padding: int = 0) -> tuple[Shape, tuple[int, ...]] | None:
        """The structure of such a micro-batch and what its expressions come to; None where a plain number is needed
        somewhere, or the job is refused with such rows."""
        values = (rows, length, *self._rest, padding)
        found = self._among_known(values)
        if found is not None or hash(self._key) in _plain:
            return found
        if self._newly >= self._most:
            self.strangers += 1
            nearest = min(self._known, key=lambda shape: abs(shape.tokens - rows * length))
            try:
                return nearest, nearest.sizes(values)
            except (ArithmeticError, LookupError, ValueError):
                return None
        self._newly += 1
        job = replace_unchecked(self._plain.job, micro_batch=rows)
        with contextlib.suppress(TunecastError):
            _made(self._key, self._plain._replace(job=job, length=length, padding=padding), self._build_as, rows=False)
            self._known += [s for s in _kinds.get(self._key, ()) if isinstance(s, Shape) and s not in self._known]
            found = self._among_known(values)
            if found is not None:
                found[0].tokens = rows * length
        return found

    def _among_known(self, values: tuple[Any, ...]) -> tuple[Shape, tuple[int, ...]] | None:
        for place, shape in enumerate(self._known):
            if shape.serves(values):
                self._known.insert(0, self._known.pop(place))  # the next one is mostly like it
                return shape, shape.sizes(values)
        return None


def built_short(
    job: Job, length: int, config: Mapping[str, Any], card: Card, build_as: Callable[[Paper], Built]
) -> Short:
    """The operations alone, with rows of `length`: where memory was asked for, of what was built then."""
    plain, key = Paper(job, length, card), key_of(job, config, None)
    found = _served([key_of(job, config, True), key], plain, rows=False) or _made(key, plain, build_as, rows=False)
    assert found.short is not None
    return found.short


def _served(keys: Iterable[Any], plain: Paper, rows: bool) -> Built | None:
    values = values_of(plain)
    for key in keys:
        shapes = _kinds.pop(key, None)
        if shapes is not None:
            _kinds[key] = shapes  # now the youngest
            for shape in shapes:
                made = shape.of(values, rows)
                if made is not None:
                    return made
    return None


def _made(key: Any, plain: Paper, build_as: Callable[[Paper], Built], rows: bool) -> Built:
    if hash(key) in _plain:
        with undisturbed():
            return build_as(plain)
    asked = Asked()
    try:
        with undisturbed():
            shape = Shape(build_as(with_symbols(plain, asked)), asked)
    except Exception as error:  # somewhere a plain number is needed, or the job is refused
        try:
            with undisturbed():
                found = build_as(plain)
        except TunecastError as refusal:
            if type(refusal) is type(error) and str(refusal) == str(error):
                _kinds.setdefault(key, []).append(Refused(asked, refusal))
            raise
        _plain.add(hash(key))
        return found
    _kinds.setdefault(key, []).append(shape)
    _forget()
    made = shape.of(values_of(plain), rows)
    assert made is not None
    return made


def _forget() -> None:
    """What was not asked for the longest."""
    rows = sum([shape.rows for made in _kinds.values() for shape in made])
    while len(_kinds) > 1 and (rows > MOST_ROWS or len(_kinds) > MOST_KINDS):
        rows -= sum([shape.rows for shape in _kinds.pop(next(iter(_kinds)))])


def key_of(job: Job, config: Mapping[str, Any], keeps_ops: bool | None) -> tuple[Any, ...]:
    """What of a job decides what is run, but for sizes and the card. `keeps_ops`: None where nothing else is kept.

    Of `data` it is whether and how rows are packed, and whether there are samples; of `hardware` whether there are
    several cards. How a run is saved, evaluated and paid for is outside its steps, and the allocator takes what the
    program asks for.
    """
    rest = tuple([getattr(job, f.name) for f in fields(job) if f.name not in APART])
    lora = tuple([getattr(job.lora, f.name) for f in fields(job.lora) if f.name != "rank"])
    cards = job.data.packing and job.data.packing_strategy, cards_of(job) != (1, 1)
    loads = job.data.lengths is not None  # a checkpoint: stacks/transformers.py, `reads_checkpoint`
    return rest, lora, cards, loads, json.dumps(config, sort_keys=True), keeps_ops


def values_of(paper: Paper) -> tuple[Any, ...]:
    """As `NAMES` has them."""
    job, card = paper.job, paper.card
    lengths = paper.length, job.seq_len
    cards = cards_of(job)
    sizes = job.micro_batch, *lengths, job.lora.rank
    return (*sizes, card.sm_count, card.capability, card.total_bytes, *cards, paper.padding)


def cards_of(job: Job) -> tuple[int, int]:
    """Of each machine, and how many machines: one with them all, but where each holds all weights."""
    gpus, nodes = job.hardware.gpus, job.hardware.nodes
    return (gpus, nodes) if job.parallel.data == "hsdp" else (gpus * nodes, 1)


def with_symbols(paper: Paper, asked: Asked) -> Paper:
    job, card = paper.job, paper.card
    cards = {name: asked.symbol(name, count) for name, count in zip(("gpus", "nodes"), cards_of(job), strict=True)}
    job = replace_unchecked(
        job,
        lora=replace_unchecked(job.lora, rank=asked.symbol("rank", job.lora.rank)),
        hardware=replace_unchecked(job.hardware, **cards),
        micro_batch=asked.symbol("batch", job.micro_batch),
        seq_len=asked.symbol("longest", job.seq_len),
    )
    card = replace_unchecked(
        card,
        sm_count=asked.symbol("sms", card.sm_count),
        capability=asked.fact("capability", card.capability),
        total_bytes=asked.fact("card_bytes", card.total_bytes),
    )
    length = asked.symbol("length", paper.length)
    padding = asked.symbol("padding", paper.padding) if paper.padding else 0
    return Paper(job, length, card, asked, paper.masked, paper.evaluates, padding)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the search for cycles, which finds few in a tape's thousands of small objects and takes a tenth of the
    time, a fifth of a plan's."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


__all__ = [
    "Built",
    "Paper",
    "Shape",
    "Shapes",
    "built",
    "built_short",
    "key_of",
    "only_numbers",
    "undisturbed",
    "values_of",
    "with_symbols",
]
