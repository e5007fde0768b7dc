"""A short tape, folded: a whole run's requests and frees as a `Program`, without making its events.

`layers.extended` and `schedule.scheduled` write a long tape out event by event, for reports that name modules and
operations. A planner asks only for memory, many times. Here the runs of a layer are kept as columns, and the columns of
a long run are put together from them: the copy for layer 7 is layer 6's with other block numbers. Both give the same
program (tests/unit/test_fold.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

from tunecast.records import dataclass, field
from tunecast.tape.layers import NotRepeating, Run, Sweep, aligned, births_of, longer, nth_of, sweeps_of
from tunecast.tape.op import Alloc, Begin, EmptyCache, Free, Op, Phase, Role, Tape
from tunecast.tape.pattern import Pattern, Values
from tunecast.tape.program import BEGIN, EMPTY_CACHE, FREE, Program, left_behind
from tunecast.tape.schedule import NotRepeatable


class Short(NamedTuple):
    """What was built, for its operations: a step for each of `lengths`."""

    pattern: Pattern
    lengths: tuple[int, ...]
    values: Values = ()
    """Of the pattern's symbols."""


@dataclass(frozen=True)
class Folded:
    """A tape that is not written out yet: its program, and how to write it out."""

    program: Program
    make_tape: Callable[[], Tape]
    guesses: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    short: Short | None = None
    """With its operations, where those were asked for."""


OWN = 0
"""A template's own births, before those of others."""


class Template:
    """One run of events: sizes, and for every row whose how-manieth birth it is about."""

    __slots__ = ("begins", "others", "places", "roles", "run", "sizes", "streams", "sweep")

    def __init__(self, run: Run, sweep: int, births: dict[int, tuple[Template, int]], copies: bool) -> None:
        self.run, self.sweep = run, sweep
        self.sizes: list[int] = []
        self.streams: list[int] = []
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

    def places_among(self, others: Sequence[Template]) -> list[tuple[int, int]]:
        """`places` where these stand for its own others."""
        same = [None if a is b else aligned(a.run, b.run) for a, b in zip(self.others, others, strict=True)]
        return [
            (origin, nth if not origin or (moved := same[origin - 1]) is None else nth_of(moved, nth))
            for origin, nth in self.places
        ]


def _is_far(layer: int | None, other: int | None) -> bool:
    """Not next to each other."""
    return layer is not None and other is not None and abs(layer - other) > 1


def folded_program(tape: Tape, layers: int, head: int, period: int, copies: int, order: Sequence[int]) -> Program:
    """Of the tape with `copies * period` more layers than the `layers` it has, its steps taken in `order`."""
    births: dict[int, tuple[Template, int]] = {}
    made = [
        (sweep, {run.layer: Template(run, number, births, copies > 0) for run in sweep.runs})
        for number, sweep in enumerate(sweeps_of(tape, layers) if copies else (Sweep((Run(None, tape.events),)),))
    ]
    blocks: list[int] = []
    sizes: list[int] = []
    streams: list[int] = []
    begins: list[Begin] = []
    roles: list[Role] = []
    bounds: list[int] = []
    bases: dict[tuple[int, int | None], tuple[Template, int]] = {}
    """Of each sweep and layer, what stands for it and the number of its first block."""
    moved: dict[tuple[Template, ...], list[tuple[int, int]]] = {}
    last_copied, added, step = head + period - 1, copies * period, -1
    for number, (sweep, templates) in enumerate(made):
        for run, layer in longer(sweep, head, period, copies):
            template = templates[run.layer]
            bases[number, layer] = template, len(roles)
            starts, others = [len(roles)], []
            roles.extend(template.roles)
            for born in template.others:
                of = born.run.layer
                if of is not None:
                    if layer is not None and run.layer is not None:
                        of += layer - run.layer
                    elif of > last_copied:
                        of += added
                if (born.sweep, of) not in bases:
                    raise NotRepeating(f"layer {layer} frees a block that layer {of} did not make")
                stands, start = bases[born.sweep, of]
                others.append(stands)
                starts.append(start)
            places = template.places
            if others != template.others:
                key = template, *others
                places = moved.get(key) or moved.setdefault(key, template.places_among(others))
            if not template.begins:
                blocks.extend([starts[origin] + nth for origin, nth in places])
            else:
                for row, (size, (origin, nth)) in enumerate(zip(template.sizes, places, strict=True)):
                    if size != BEGIN:
                        blocks.append(starts[origin] + nth)
                        continue
                    begin = template.begins[nth]
                    if begin.phase is not Phase.LOAD and begin.step != step:
                        step = begin.step
                        bounds.append(len(sizes) + row)
                    blocks.append(len(begins))
                    begins.append(begin)
            sizes.extend(template.sizes)
            streams.extend(template.streams)
    bounds.append(len(sizes))
    several = streams if any(streams) else None
    rows = Program(blocks, sizes, several, begins, roles, bounds, list(order), left_behind(blocks, sizes, bounds))
    _check(rows)
    return rows


def _check(rows: Program) -> None:
    """A block is freed once, and a step that is taken again hands on as much as it expects and keeps nothing."""
    frees = [size == FREE for size in rows.sizes]
    gone = set(compress(rows.blocks, frees))
    if len(gone) < sum(frees):
        raise NotRepeating("a block is freed twice")
    taken: set[int] = set()
    checked: set[int] = set()
    for position, step in enumerate(rows.order):
        if step and position:
            have, expected = len(rows.left[rows.order[position - 1]]), len(rows.left[step - 1])
            if have != expected:
                raise NotRepeatable(f"step {step} expects {expected} blocks of the step before it, not {have}")
        if step in taken and step not in checked:
            checked.add(step)
            start, end = rows.bounds[step], rows.bounds[step + 1]
            made = compress(rows.blocks[start:end], [size >= 0 for size in rows.sizes[start:end]])
            if not gone.issuperset(made):
                raise NotRepeatable(f"step {step} makes blocks that stay")
        taken.add(step)
