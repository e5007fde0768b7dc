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
from tunecast.tape.layers import NotRepeating, Run, Sweep, births_of, longer, sweeps_of
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
"""The first of a template's origins: its own births."""


class Template:
    """One run of events: sizes, and for every row whose how-manieth birth it is about."""

    __slots__ = ("begins", "origins", "places", "roles", "sizes", "streams")

    def __init__(self, run: Run, sweep: int, births: dict[int, tuple[int, int | None, int]], last: int | None) -> None:
        """`last` is the last layer's number; None where no layer is copied.

        The first layer may free what the last one made: a gradient that every layer adds to in place lives through all
        of them. Were it freed so many layers on instead, those of the layers that are copied would be freed outside the
        layers, their copies not at all, and `_check` says so.
        """
        self.sizes: list[int] = []
        self.streams: list[int] = []
        self.places: list[tuple[int, int]] = []
        """Of each row: an index into `origins` and the how-manieth birth there; of a Begin, its place in `begins`."""
        self.begins: list[Begin] = []
        self.origins: list[tuple[int, int | None]] = [(sweep, run.layer)]
        """(sweep, layer) in which blocks were born."""
        known = {self.origins[OWN]: OWN}
        made = births_of(run)
        births.update((block, (sweep, run.layer, nth)) for nth, block in enumerate(made))
        roles: dict[int, Role] = {}
        for event in run.events:
            kind = type(event)
            if kind is Op:
                continue
            if isinstance(event, Alloc):
                roles[event.block] = event.role
                self.sizes.append(event.nbytes if event.nbytes > 0 else 0)
                self.streams.append(event.stream)
                self.places.append((OWN, births[event.block][2]))
            elif isinstance(event, Free):
                born, layer, nth = births[event.block]
                if last is not None and _is_far(run.layer, layer) and not (run.layer == 0 and layer == last):
                    raise NotRepeating(f"layer {run.layer} frees what layer {layer} made")
                if (born, layer) not in known:
                    known[born, layer] = len(self.origins)
                    self.origins.append((born, layer))
                self.sizes.append(FREE)
                self.streams.append(0)
                self.places.append((known[born, layer], nth))
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


def _is_far(layer: int | None, other: int | None) -> bool:
    """Not next to each other."""
    return layer is not None and other is not None and abs(layer - other) > 1


def folded_program(tape: Tape, layers: int, head: int, period: int, copies: int, order: Sequence[int]) -> Program:
    """Of the tape with `copies * period` more layers than the `layers` it has, its steps taken in `order`."""
    births: dict[int, tuple[int, int | None, int]] = {}
    made = [
        (sweep, {run.layer: Template(run, number, births, layers - 1 if copies else None) for run in sweep.runs})
        for number, sweep in enumerate(sweeps_of(tape, layers) if copies else (Sweep((Run(None, tape.events),)),))
    ]
    blocks: list[int] = []
    sizes: list[int] = []
    streams: list[int] = []
    begins: list[Begin] = []
    roles: list[Role] = []
    bounds: list[int] = []
    bases: dict[tuple[int, int | None], int] = {}
    last_copied, added, step = head + period - 1, copies * period, -1
    for number, (sweep, templates) in enumerate(made):
        for run, layer in longer(sweep, head, period, copies):
            template = templates[run.layer]
            bases[number, layer] = len(roles)
            roles.extend(template.roles)
            starts = [bases[number, layer]]
            for born, of in template.origins[1:]:
                if of is not None:
                    if layer is not None and run.layer is not None and not _is_far(run.layer, of):
                        of += layer - run.layer
                    elif of > last_copied:
                        of += added
                if (born, of) not in bases:
                    raise NotRepeating(f"layer {layer} frees a block that layer {of} did not make")
                starts.append(bases[born, of])
            if not template.begins:
                blocks.extend([starts[origin] + nth for origin, nth in template.places])
            else:
                for row, (size, (origin, nth)) in enumerate(zip(template.sizes, template.places, strict=True)):
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
