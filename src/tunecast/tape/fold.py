"""A short tape, folded: a whole run's requests and frees as a `Program`, without making its events.

`layers.extended` and `schedule.scheduled` write a long tape out event by event, for reports that name modules and
operations. A planner asks only for memory, many times. Here the runs of a layer are kept as columns, and the columns of
a long run are put together from them: the copy for layer 7 is layer 6's with other block numbers. Both give the same
program (tests/unit/test_fold.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tunecast.records import NamedTuple, dataclass, field
from tunecast.tape.columns import Lives, lives, marks, shifted
from tunecast.tape.layers import LayerRun, NotRepeating, Sweep, aligned, births_of, nth_of, stood_for, sweeps_of
from tunecast.tape.op import Alloc, Begin, EmptyCache, Free, Op, Phase, Role, Tape
from tunecast.tape.pattern import Pattern, Values
from tunecast.tape.program import BEGIN, EMPTY_CACHE, FREE, Program
from tunecast.tape.schedule import NotRepeatable


class Operations(NamedTuple):
    """The operations of a run that was built: a step for each of `lengths`."""

    pattern: Pattern
    lengths: tuple[int, ...]
    values: Values = ()
    """Of the pattern's symbols."""
    cycle: int = 1
    """After how many steps they do the same again (`shorten.cycle_of`)."""


@dataclass(frozen=True)
class Folded:
    """A run whose tape is not written out: its program, and how to write its tape out."""

    program: Program
    make_tape: Callable[[], Tape]
    guesses: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    operations: Operations | None = None
    """Where those were asked for."""


Columns: TypeAlias = "tuple[array[int], array[int]]"
"""Of each row, whose birth it is about and the how-manieth."""
OWN = 0
"""A template's own births, before those of others."""


class Template:
    """One run of events: sizes, and for every row whose how-manieth birth it is about."""

    __slots__ = ("begins", "columns", "others", "places", "roles", "run", "sizes", "streams", "sweep")

    def __init__(self, run: LayerRun, sweep: int, births: dict[int, tuple[Template, int]], copies: bool) -> None:
        self.run, self.sweep = run, sweep
        self.sizes = array("q")
        self.streams = array("q")
        self.places: list[tuple[int, int]] = []
        """Of each row: whose birth, by the place among itself and `others`, and the how-manieth; of a Begin, its place
        in `begins`."""
        self.begins: list[Begin] = []
        self.others: list[Template] = []
        """Where the blocks it frees were born. It is not one of them: it would never be let go of."""
        known = {self: OWN}
        made = births_of(run)
        births.update((block, (self, nth)) for nth, block in enumerate(made))
        roles: dict[int, Role] = {}
        for event in run.events:
            kind = type(event)
            if kind is Op:
                continue
            if isinstance(event, Alloc):
                roles[event.block] = event.role
                self.sizes.append(event.nbytes if event.nbytes > 0 else 0)
                self.streams.append(event.stream)
                self.places.append((OWN, births[event.block][1]))
            elif isinstance(event, Free):
                origin, nth = births[event.block]
                if origin not in known:
                    if copies and _is_far(run.layer, origin.run.layer):
                        raise NotRepeating(f"layer {run.layer} frees what layer {origin.run.layer} made")
                    self.others.append(origin)
                    known[origin] = len(self.others)
                self.sizes.append(FREE)
                self.streams.append(0)
                self.places.append((known[origin], nth))
            elif isinstance(event, Begin):
                self.sizes.append(BEGIN)
                self.streams.append(0)
                self.places.append((OWN, len(self.begins)))
                self.begins.append(event)
            elif isinstance(event, EmptyCache):
                self.sizes.append(EMPTY_CACHE)
                self.streams.append(0)
                self.places.append((OWN, 0))
        self.roles: list[Role] = [roles[block] for block in made]
        self.columns = _columns(self.places)

    def places_among(self, others: Sequence[Template]) -> list[tuple[int, int]]:
        """`places` where these stand for its own others."""
        same = [None if a is b else aligned(a.run, b.run) for a, b in zip(self.others, others, strict=True)]
        return [
            (origin, nth if not origin or (moved := same[origin - 1]) is None else nth_of(moved, nth))
            for origin, nth in self.places
        ]


def _columns(places: Sequence[tuple[int, int]]) -> Columns:
    return array("q", [origin for origin, _ in places]), array("q", [nth for _, nth in places])


def _is_far(layer: int | None, other: int | None) -> bool:
    """Not next to each other."""
    return layer is not None and other is not None and abs(layer - other) > 1


def folded_program(tape: Tape, whole: Sequence[int] | None, order: Sequence[int]) -> Program:
    """Of the tape with as many layers as `whole` has, each of them as the tape's layer that is named there; its steps
    taken in `order`. None: the tape's own layers."""
    births: dict[int, tuple[Template, int]] = {}
    made = [
        (sweep, {run.layer: Template(run, number, births, whole is not None) for run in sweep.runs})
        for number, sweep in enumerate(
            sweeps_of(tape, max(whole) + 1) if whole else (Sweep((LayerRun(None, tape.events),)),)
        )
    ]
    blocks, sizes, streams = array("q"), array("q"), array("q")
    begins: list[Begin] = []
    roles: list[Role] = []
    bounds: list[int] = []
    bases: dict[tuple[int, int | None], tuple[Template, int]] = {}
    """Of each sweep and layer, what stands for it and the number of its first block."""
    moved: dict[tuple[Template, ...], Columns] = {}
    first = {stands: layer for layer, stands in reversed(list(enumerate(whole or ())))}
    step = -1
    for number, (sweep, templates) in enumerate(made):
        for run, layer in stood_for(sweep, whole or ()):
            template = templates[run.layer]
            bases[number, layer] = template, len(roles)
            starts, others = [len(roles)], []
            roles.extend(template.roles)
            for born in template.others:
                of = born.run.layer
                if of is not None:
                    if layer is not None and run.layer is not None:
                        of += layer - run.layer
                    else:
                        of = first[of]
                if (born.sweep, of) not in bases:
                    raise NotRepeating(f"layer {layer} frees a block that layer {of} did not make")
                stands, start = bases[born.sweep, of]
                others.append(stands)
                starts.append(start)
            columns = template.columns
            if others != template.others:
                key = template, *others
                columns = moved.get(key) or moved.setdefault(key, _columns(template.places_among(others)))
            first_row = len(blocks)
            blocks.extend(shifted(starts, *columns))
            for row in marks(template.sizes) if template.begins else ():
                if template.sizes[row] != BEGIN:
                    continue
                begin = template.begins[columns[1][row]]
                if begin.phase is not Phase.LOAD and begin.step != step:
                    step = begin.step
                    bounds.append(first_row + row)
                blocks[first_row + row] = len(begins)
                begins.append(begin)
            sizes.extend(template.sizes)
            streams.extend(template.streams)
    bounds.append(len(sizes))
    several = streams if any(streams) else None
    found = lives(blocks, sizes, bounds, len(roles))
    rows = Program(blocks, sizes, several, begins, roles, bounds, list(order), found.left)
    _check(rows, found)
    return rows


def _check(rows: Program, found: Lives) -> None:
    """A block is freed once, and a step that is taken again hands on as much as it expects and keeps nothing."""
    if found.twice:
        raise NotRepeating("a block is freed twice")
    taken: set[int] = set()
    for position, step in enumerate(rows.order):
        if step and position:
            have, expected = len(rows.left[rows.order[position - 1]]), len(rows.left[step - 1])
            if have != expected:
                raise NotRepeatable(f"step {step} expects {expected} blocks of the step before it, not {have}")
        if step in taken and not found.closed[step]:
            raise NotRepeatable(f"step {step} makes blocks that stay")
        taken.add(step)
