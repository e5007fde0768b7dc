"""One optimizer step as who prices it sees it: sections of operations, and each distinct operation once.

    Section(FORWARD, 1, embed, layer 0, layer 1)   Section(FORWARD, 29, layer 2)   Section(FORWARD, 1, layer 31, head)

A step of an 8B model runs tens of thousands of operations, two or three thousand are written in its sections, and these
are one or two hundred distinct ones at different places. The places are the same for every batch, length and card that
a structure was built for: they are `Layout`, found once; what differs from step to step is the distinct operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

from tunecast.records import NamedTuple
from tunecast.tape.layers import Sweep, container_of, module_moved, stood_for, sweeps_of
from tunecast.tape.op import LOOP, LOOP_END, Begin, Event, Op, Phase, Tape
from tunecast.tape.shorten import Standing


class StepSection(NamedTuple):
    """`ops` run `times` times in a row: a layer for its copies, or what is outside the layers once. Of no operations:
    the beginning of a loop where `times` is 0, and its end where it is -n, of one that runs n times."""

    phase: Phase
    times: int
    ops: Sequence[Op]


class Layout:
    """Where in a step its distinct operations run. One object for all steps of a structure, compared by identity."""

    __slots__ = ("kept", "modules", "places", "turns")

    def __init__(
        self, turns: tuple[tuple[Phase, int], ...], places: tuple[tuple[int, ...], ...],
        modules: tuple[tuple[str, ...], ...],
    ) -> None:  # fmt: skip
        self.turns = turns
        """Of each section, its phase and how often it runs."""
        self.places = places
        """Of each section; the same tuple where sections run the same."""
        self.modules = modules
        """Of each section, whose operations they are."""
        self.kept: dict[Any, Any] = {}
        """What others find out about all these steps, by names of theirs."""


class Table(NamedTuple):
    distinct: tuple[Op, ...]
    """Operations that differ in more than where they are; of alike ones the first."""
    places: tuple[tuple[int, ...], ...]
    """Of each section, its operations' places among them."""
    layout: Layout


class Ops(Sequence[Op]):
    """A section's operations, made where somebody looks at them one by one."""

    __slots__ = ("_made", "distinct", "modules", "places")

    def __init__(self, distinct: tuple[Op, ...], places: tuple[int, ...], modules: tuple[str, ...]) -> None:
        self.distinct, self.places, self.modules = distinct, places, modules
        self._made: tuple[Op, ...] | None = None

    def _whole(self) -> tuple[Op, ...]:
        if self._made is None:
            found = (self.distinct[place] for place in self.places)
            self._made = tuple(
                op if op.module == module else op._replace(module=module)
                for op, module in zip(found, self.modules, strict=True)
            )
        return self._made

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Op: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Op]: ...
    def __getitem__(self, index: int | slice) -> Op | Sequence[Op]:
        return self._whole()[index]

    def __iter__(self) -> Iterator[Op]:
        return iter(self._whole())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._whole() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._whole())


class Step:
    """One steady optimizer step, all its micro-batches; or `count` that follow each other and are not alike."""

    __slots__ = ("_sections", "_table", "count")

    def __init__(self, sections: Iterable[StepSection], count: int = 1) -> None:
        self._sections: tuple[StepSection, ...] | None = tuple(sections)
        self._table: Table | None = None
        self.count = count

    @classmethod
    def laid_out(cls, distinct: tuple[Op, ...], layout: Layout) -> Step:
        step = cls(())
        step._sections, step._table = None, Table(distinct, layout.places, layout)
        return step

    @property
    def sections(self) -> tuple[StepSection, ...]:
        if self._sections is None:
            distinct, _, layout = self.table
            made: dict[tuple[int, int], Ops] = {}
            sections = []
            for (phase, times), places, modules in zip(layout.turns, layout.places, layout.modules, strict=True):
                ops = made.get((id(places), id(modules)))
                if ops is None:
                    ops = made[id(places), id(modules)] = Ops(distinct, places, modules)
                sections.append(StepSection(phase, times, ops))
            self._sections = tuple(sections)
        return self._sections

    @property
    def table(self) -> Table:
        if self._table is None:
            self._table = _table_of(self.sections)
        return self._table

    def only(self, phase: Phase) -> Step:
        """The sections of one phase; of all steps of a structure they are laid out once."""
        distinct, _, layout = self.table
        if ("only", phase) not in layout.kept:
            columns = layout.turns, layout.places, layout.modules
            rows = [row for row in zip(*columns, strict=True) if row[0][0] is phase]
            layout.kept["only", phase] = Layout(*zip(*rows, strict=True))
        part = Step.laid_out(distinct, layout.kept["only", phase])
        part.count = self.count
        return part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and self.sections == other.sections

    def __hash__(self) -> int:
        return hash(self.sections)

    def ops(self) -> Iterator[tuple[Op, int]]:
        """Every operation, with how often it runs."""
        return ((op, section.times) for section in self.sections for op in section.ops)

    @property
    def flops(self) -> int:
        return sum(self.table.distinct[place].flops * times for place, times in self._counts().items())

    @property
    def model_flops(self) -> int:
        """Without what a backward pass computes for the second time."""
        distinct, places, layout = self.table
        total, known = 0, {}  # type: tuple[int, dict[tuple[int, bool], int]]
        for (phase, times), row in zip(layout.turns, places, strict=True):
            again = phase is Phase.BACKWARD
            found = known.get((id(row), again))
            if found is None:
                counted = [distinct[place] for place in row]
                found = known[id(row), again] = sum(op.flops for op in counted if op.by_engine or not again)
            total += found * times
        return total

    @property
    def kernels(self) -> int:
        return sum(self.table.distinct[place].kernels * times for place, times in self._counts().items())

    def _counts(self) -> dict[int, int]:
        """How often each distinct operation runs."""
        _, places, layout = self.table
        found: dict[int, int] | None = layout.kept.get("counts")
        if found is None:
            rows = {id(row): row for row in places}
            runs = dict.fromkeys(rows, 0)
            for (_, times), row in zip(layout.turns, places, strict=True):
                runs[id(row)] += times
            found = layout.kept["counts"] = {}
            for name, row in rows.items():
                for place in row:
                    found[place] = found.get(place, 0) + runs[name]
        return found


def _table_of(sections: Sequence[StepSection]) -> Table:
    """Of a step made by hand."""
    distinct: list[Op] = []
    known: dict[Any, int] = {}
    rows: dict[int, tuple[int, ...]] = {}
    same: dict[tuple[int, ...], tuple[int, ...]] = {}
    for section in sections:
        if id(section.ops) in rows:
            continue
        row = []
        for op in section.ops:
            key = op.work
            place = known.get(key)
            if place is None:
                place = known[key] = len(distinct)
                distinct.append(op)
            row.append(place)
        rows[id(section.ops)] = same.setdefault(tuple(row), tuple(row))
    places = tuple(rows[id(section.ops)] for section in sections)
    named = {id(section.ops): tuple([op.module for op in section.ops]) for section in sections}
    modules = tuple(named[id(section.ops)] for section in sections)
    return Table(tuple(distinct), places, Layout(tuple((s.phase, s.times) for s in sections), places, modules))


# ---------------------------------------------------------------------------------------------------- cutting


def step_of(events: Sequence[Event], standing: Standing | None, grad_accum: int = 1) -> Step:
    """The events of a step, folded as `standing` says (None: every layer is there), with so many micro-batches."""
    return Step(with_micro_batches(sections_of(events, standing), grad_accum))


def traced_step(events: Sequence[Event]) -> Step:
    """The same of a step whose events are all there: every layer, every micro-batch."""
    return Step(_with_loops(sections_of(events, None)))


def with_micro_batches(sections: Sequence[StepSection], grad_accum: int) -> tuple[StepSection, ...]:
    """The second of a few stands for all that are missing; loops are written out."""
    sections = _with_loops(sections)
    first, *following, rest = micro_batches(sections)
    if len(following) + 1 == grad_accum or not following:
        return tuple(sections)
    again, last = following[0], following[1:]
    middle = (section for _ in range(grad_accum - 1 - len(last)) for section in again)
    return (*first, *middle, *(section for part in last for section in part), *rest)


def _with_loops(sections: Sequence[StepSection]) -> Sequence[StepSection]:
    if all([section.times > 0 for section in sections]):
        return sections
    out: list[StepSection] = []
    start = 0
    for section in sections:
        if section.times > 0:
            out.append(section)
        elif section.times == 0:
            start = len(out)
        else:
            out += out[start:] * (-section.times - 1)
    return out


def micro_batches(sections: Sequence[StepSection]) -> list[list[StepSection]]:
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


def sections_of(events: Sequence[Event], standing: Standing | None) -> list[StepSection]:
    return list(_sections([event for event in events if isinstance(event, (Op, Begin))], standing))


def _sections(events: Sequence[Op | Begin], standing: Standing | None) -> Iterator[StepSection]:
    """Consecutive operations that run once in one phase are one section."""
    phase, once = Phase.OTHER, []  # type: tuple[Phase, list[Op]]
    for times, part in _parts(events, standing):
        if times > 1 and once:
            yield StepSection(phase, 1, tuple(once))
            once = []
        for event in part:
            if isinstance(event, Op) and event.name in (LOOP, LOOP_END):
                if once:
                    yield StepSection(phase, 1, tuple(once))
                    once = []
                yield StepSection(phase, -event.shapes[0][0] if event.name == LOOP_END else 0, ())
            elif isinstance(event, Op):
                once.append(event)
            elif isinstance(event, Begin) and event.phase is not phase:
                if once:
                    yield StepSection(phase, times, tuple(once))
                phase, once = event.phase, []
        if times > 1:
            yield StepSection(phase, times, tuple(once))
            once = []
    if once:
        yield StepSection(phase, 1, tuple(once))


def _parts(events: Sequence[Op | Begin], standing: Standing | None) -> Iterator[tuple[int, Sequence[Event]]]:
    if standing is None:
        yield 1, events
        return
    tape = Tape(tuple(events))
    container = container_of(tape, standing.built)
    for sweep in sweeps_of(tape, standing.built):
        yield from _sweep_parts(sweep, standing, container)


def _sweep_parts(sweep: Sweep, standing: Standing, container: str) -> Iterator[tuple[int, Sequence[Event]]]:
    """A layer's turn once; that of the layers that repeat, with how often they do."""
    rhythm = standing.rhythm
    start, end, times = rhythm.head, rhythm.head + rhythm.period, rhythm.copies + 1
    repeats: list[Event] = []
    for run, layer in stood_for(sweep, standing.short):
        events: Sequence[Event] = run.events
        if layer is not None and run.layer is not None and layer != run.layer:
            shift = layer - run.layer
            events = [
                event._replace(module=module_moved(event.module, container, shift)) if isinstance(event, Op) else event
                for event in events
            ]
        if layer is not None and start <= layer < end:
            repeats.extend(events)
            continue
        if repeats:
            yield times, repeats
            repeats = []
        yield 1, events
    if repeats:
        yield times, repeats
