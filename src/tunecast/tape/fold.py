"""A short tape, folded: a whole run's requests and frees as columns of numbers, without making its events.

`layers.extended` and `schedule.scheduled` write a long tape out event by event, for reports that name modules and
operations. A planner asks only for memory, many times. Here the runs of a layer are kept as columns, and the columns of a
long run are put together from them: the copy for layer 7 is layer 6's with other block numbers. Both give the same
program (tests/properties/test_fold.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunecast.tape.layers import NotRepeating, Run, Sweep, sweeps_of
from tunecast.tape.op import Alloc, Begin, EmptyCache, Free, Op, Phase, Role, Tape

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


class Template:
    """One run of events: sizes, and for every row which run's how-manieth birth it is about."""

    __slots__ = ("begins", "births", "layer", "places", "roles", "sizes", "sweep")

    def __init__(self, run: Run, sweep: int, births: dict[int, tuple[int, int | None, int]]) -> None:
        self.layer, self.sweep = run.layer, sweep
        self.sizes: list[int] = []
        self.places: list[tuple[int, int | None, int]] = []
        """(sweep, layer, nth) of the block of each row."""
        self.begins: list[Begin] = []
        self.roles: list[Role] = []
        for event in run.events:
            if isinstance(event, Alloc):
                place = births[event.block] = (sweep, run.layer, len(self.roles))
                self.sizes.append(max(0, event.nbytes))
                self.places.append(place)
                self.roles.append(event.role)
            elif isinstance(event, Free):
                self.sizes.append(FREE)
                self.places.append(births[event.block])
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
        (sweep, {run.layer: Template(run, number, births) for run in sweep.runs})
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
                    blocks.append(bases[born, of] + nth)
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


def marks(names: Sequence[str]) -> dict[str, Op]:
    """For tapes that keep no operations: one that says only whose turn it is, for each module."""
    return {name: Op("", name, kernels=0) for name in names}
