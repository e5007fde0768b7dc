"""A whole run (whole_run.py) as a tape, for reports that name modules, operations and lines.

Written out are loading, the first two steps and the surroundings of one moment, such as the peak. Of the other units
there is what outlives them: what is alive at that moment is alive on the tape too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tunecast.records import NamedTuple
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Op, Phase, Tape
from tunecast.tape.units import FREE_OTHER, FREE_OWN

FIRST_STEPS = 2
UNITS_BEFORE, UNITS_AFTER = 48, 8
"""Around the moment."""


class UnitRows(NamedTuple):
    """What one unit of the run does, as one that was traced did it."""

    events: Sequence[Event]
    """Of the traced one."""
    rows: Sequence[tuple[int, ...]]
    """Its structure (units.py)."""
    sizes: Sequence[int]
    """Of its requests in this run."""
    survivors: Sequence[int]
    """Which of the blocks it makes live on."""
    phase: Phase
    """When it begins."""
    step: int
    targets: Mapping[tuple[int, int], int]
    """The parts whose blocks it frees, by group and how many of it came since."""
    late: Callable[[int, int], bool]
    """Whether the script holds a block for longer, by part and survivor."""


class GapRows(NamedTuple):
    events: Sequence[Event]
    survivors: Sequence[int]
    """Blocks of the traced tape."""
    frees: Sequence[Sequence[tuple[int, int]]]
    """Before each event, and after the last: parts and survivors that go."""


class TapeWriter:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._events: list[Event] = []
        self._played: dict[int, list[int | None]] = {}
        """Of each part the blocks of its survivors; None: gone."""
        self._count = 0

    def tape(self) -> Tape:
        return self._tape.with_events(self._events)

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _free(self, part: int, survivor: int) -> None:
        held = self._played.get(part, ())
        if survivor < len(held):
            block = held[survivor]
            if block is not None:
                self._events.append(Free(block))
                held[survivor] = None  # type: ignore[index]

    def write_gap(self, number: int, gap: GapRows) -> None:
        own: dict[int, int] = {}
        for event, frees in zip(gap.events, gap.frees, strict=False):
            for part, survivor in frees:
                self._free(part, survivor)
            if isinstance(event, Alloc):
                own[event.block] = self._new()
                self._events.append(event._replace(block=own[event.block]))
            elif isinstance(event, Free):
                if event.block in own:
                    self._events.append(Free(own.pop(event.block)))
            else:
                self._events.append(event)
        for part, survivor in gap.frees[-1]:
            self._free(part, survivor)
        self._played[number] = [own[block] for block in gap.survivors]

    def write_unit(self, number: int, unit: UnitRows, *, full: bool) -> None:
        self._events.append(Begin(unit.phase, unit.step))
        own: list[int] = []
        if full:
            rows = iter(unit.rows)
            for event in unit.events:
                kind = type(event)
                if kind is Op:
                    self._events.append(event)
                elif isinstance(event, Begin):
                    phase = Phase.OTHER if event.phase is Phase.LOAD and unit.phase is not Phase.LOAD else event.phase
                    self._events.append(Begin(phase, unit.step))
                elif isinstance(event, Alloc):
                    next(rows)
                    own.append(self._new())
                    self._events.append(event._replace(block=own[-1], nbytes=unit.sizes[len(own) - 1]))
                elif isinstance(event, Free):
                    row = next(rows)
                    if row[0] == FREE_OWN:
                        self._events.append(Free(own[row[1]]))
                    else:
                        self._release(unit, row)
                elif isinstance(event, EmptyCache):
                    next(rows)
                    self._events.append(event)
            self._played[number] = [own[place] for place in unit.survivors]
            return
        for row in unit.rows:
            if row[0] == FREE_OTHER:
                self._release(unit, row)
        made = [event for event in unit.events if isinstance(event, Alloc)] if unit.survivors else []
        left: list[int | None] = []
        for place in unit.survivors:
            left.append(self._new())
            self._events.append(made[place]._replace(block=self._count - 1, nbytes=unit.sizes[place]))
        self._played[number] = left

    def _release(self, unit: UnitRows, row: tuple[int, ...]) -> None:
        target = unit.targets.get((row[1], row[2]), -1)
        if not unit.late(target, row[3]):
            self._free(target, row[3])
