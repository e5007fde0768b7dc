"""A short tape, folded: a whole run's requests and frees as columns of numbers, without making its events.

`layers.extended` and `schedule.scheduled` write a long tape out event by event, for reports that name modules and
operations. A planner asks only for memory, many times. Here the runs of a layer are kept as columns, and the columns of
a long run are put together from them: the copy for layer 7 is layer 6's with other block numbers. Both give the same
program (tests/unit/test_fold.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tunecast.tape.layers import NotRepeating, Run, Sweep, births_of, sweeps_of
from tunecast.tape.op import Alloc, Begin, EmptyCache, Free, Phase, Role, Tape
from tunecast.tape.schedule import NotRepeatable

FREE, BEGIN, EMPTY_CACHE = -1, -2, -3
"""In the column of sizes: what a row is when it asks for nothing."""


@dataclass(frozen=True)
class Columns:
    """Rows of a run in order: a block and the bytes it asks for, or one of the marks above."""

    blocks: list[int]
    sizes: list[int]
    begins: list[Begin]
    roles: list[Role]
    """Of each block, by its number."""
    starts: list[int]
    """The rows at which optimizer steps begin."""


@dataclass(frozen=True)
class Folded:
    """A tape that is not written out yet: its columns, and how to write it out."""

    columns: Columns
    repeats: Mapping[int, list[int]]
    """Rows at which a step begins that does again what the one before did, with the blocks that cross into it."""
    make_tape: Callable[[], Tape]
    guesses: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


class Template:
    """One run of events: sizes, and for every row which run's how-manieth birth it is about."""

    __slots__ = ("begins", "births", "layer", "places", "roles", "sizes", "sweep")

    def __init__(self, run: Run, sweep: int, births: dict[int, tuple[int, int | None, int]], copied: bool) -> None:
        self.layer, self.sweep = run.layer, sweep
        self.sizes: list[int] = []
        self.places: list[tuple[int, int | None, int]] = []
        """(sweep, layer, nth) of the block of each row."""
        self.begins: list[Begin] = []
        self.roles: list[Role] = []
        for nth, block in enumerate(births_of(run)):
            births[block] = (sweep, run.layer, nth)
        roles = {event.block: event.role for event in run.events if isinstance(event, Alloc)}
        self.roles.extend([roles[block] for block in births_of(run)])
        for event in run.events:
            if isinstance(event, Alloc):
                self.sizes.append(max(0, event.nbytes))
                self.places.append(births[event.block])
            elif isinstance(event, Free):
                self.sizes.append(FREE)
                place = births[event.block]
                far = run.layer is not None and place[1] is not None and abs(place[1] - run.layer) > 1
                if copied and far:
                    raise NotRepeating(f"layer {run.layer} frees what layer {place[1]} made")
                self.places.append(place)
            elif isinstance(event, Begin):
                self.sizes.append(BEGIN)
                self.places.append((0, None, len(self.begins)))
                self.begins.append(event)
            elif isinstance(event, EmptyCache):
                self.sizes.append(EMPTY_CACHE)
                self.places.append((0, None, 0))
        self.births = len(self.roles)


def unfolded(tape: Tape, layers: int, head: int, period: int, copies: int) -> Columns:
    """The columns of the tape with `copies * period` more layers than the `layers` it has."""
    births: dict[int, tuple[int, int | None, int]] = {}
    made = [
        (sweep, {run.layer: Template(run, number, births, copies > 0) for run in sweep.runs})
        for number, sweep in enumerate(sweeps_of(tape, layers))
    ]
    columns = Columns([], [], [], [], [])
    bases: dict[tuple[int, int | None], int] = {}
    last_copied, added, step = head + period - 1, copies * period, -1
    for number, (sweep, templates) in enumerate(made):
        for written, layer in _longer(sweep, head, period, copies):
            template = templates[written]
            bases[number, layer] = base = len(columns.roles)
            columns.roles.extend(template.roles)
            shift = 0 if layer is None or written is None else layer - written
            blocks, begins = columns.blocks, columns.begins
            for size, (born, of, nth) in zip(template.sizes, template.places, strict=True):
                if size >= 0:
                    blocks.append(base + nth)
                elif size == FREE:
                    if of is not None:
                        if layer is not None:
                            of += shift
                        elif of > last_copied:
                            of += added
                    start = bases.get((born, of))
                    if start is None:
                        raise NotRepeating(f"layer {layer} frees a block that layer {of} did not make")
                    blocks.append(start + nth)
                elif size == BEGIN:
                    begin = template.begins[nth]
                    if begin.phase is not Phase.LOAD and begin.step != step:
                        step = begin.step
                        columns.starts.append(len(columns.sizes) + template.sizes.index(BEGIN))
                    blocks.append(len(begins))
                    begins.append(begin)
                else:
                    blocks.append(0)
            columns.sizes.extend(template.sizes)
    freed = [block for block, size in zip(columns.blocks, columns.sizes, strict=True) if size == FREE]
    if len(set(freed)) < len(freed):
        raise NotRepeating("a block is freed twice")
    return columns


def _longer(sweep: Sweep, head: int, period: int, copies: int) -> list[tuple[int | None, int | None]]:
    """(layer of the short tape, layer it now stands for), in the order of the sweep; `layers._longer` on numbers."""
    if sweep.runs[0].layer is None:
        return [(None, None)]
    rising = sorted(run.layer for run in sweep.runs if run.layer is not None)
    middle = [layer for layer in rising if head <= layer < head + period]
    last = [layer for layer in rising if layer >= head + period]
    first = [layer for layer in rising if layer < head]
    if len(middle) != period and (middle or (first and last)):
        raise NotRepeating(f"a pass over the layers takes {rising} only")
    longer: list[tuple[int | None, int | None]] = [(layer, layer) for layer in first]
    longer += [(layer, layer + k * period) for k in range(copies + 1) for layer in middle]
    longer += [(layer, layer + copies * period) for layer in last]
    return longer[::-1] if sweep.falls else longer


def in_order(columns: Columns, order: Sequence[int]) -> tuple[Columns, dict[int, list[int]]]:
    """The steps of the columns in `order`, as `schedule.scheduled`; and by the first row of a step that does again what
    the one before it did, the blocks that cross into it."""
    bounds = [*columns.starts, len(columns.sizes)]
    load = columns.starts[0]
    out = Columns(columns.blocks[:load], columns.sizes[:load], columns.begins[:], columns.roles[:], [])
    left = [_left_behind(columns, bounds[step], bounds[step + 1]) for step in range(len(bounds) - 1)]
    carried: list[int] = []
    repeats: dict[int, list[int]] = {}
    used: set[int] = set()
    for position, step in enumerate(order):
        start, end = bounds[step], bounds[step + 1]
        out.starts.append(len(out.sizes))
        before = left[step - 1] if step else []
        if position and len(before) != len(carried):
            raise NotRepeatable(f"step {step} expects {len(before)} blocks of the step before it, not {len(carried)}")
        names = dict(zip(before, carried, strict=True)) if position else {}
        blocks = columns.blocks[start:end]
        if step in used:
            born = [b for b, size in zip(blocks, columns.sizes[start:end], strict=True) if size >= 0]
            names.update({block: len(out.roles) + number for number, block in enumerate(born)})
            out.roles.extend([columns.roles[block] for block in born])
            if order[position - 1] == step:
                repeats[len(out.sizes)] = list(carried)
        used.add(step)
        marked = columns.sizes[start:end]
        for row, size in enumerate(marked):
            if size == BEGIN:
                begin = columns.begins[blocks[row]]
                blocks[row] = len(out.begins)
                out.begins.append(Begin(begin.phase, position))
            elif size != EMPTY_CACHE:
                blocks[row] = names.get(blocks[row], blocks[row])
        out.blocks.extend(blocks)
        out.sizes.extend(marked)
        carried = [names.get(block, block) for block in left[step]]
    return out, repeats


def _left_behind(columns: Columns, start: int, end: int) -> list[int]:
    """Blocks born between two rows and freed after, in the order they were made."""
    freed = {b for b, size in zip(columns.blocks[end:], columns.sizes[end:], strict=True) if size == FREE}
    return [
        b
        for b, size in zip(columns.blocks[start:end], columns.sizes[start:end], strict=True)
        if size >= 0 and b in freed
    ]
