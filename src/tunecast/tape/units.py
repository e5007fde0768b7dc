"""A script's run in units: calls of its model, backward passes, optimizer steps, and what stands between them.

    load │ call │ gap │ backward │ gap │ clip │ gap │ step │ gap │ zero_grad │ gap │ call ...

Units of one kind do the same with other sizes. So most of a long run need not be traced: the script runs on, a unit
that is skipped leaves only a mark, and what it does to memory is written in from the traced units of its kind. Gaps are
the script's own lines (moving a batch, logging, metrics); they are always traced.

A unit's structure is its rows: requests, frees of its own blocks by number, frees of other units' blocks by the unit
they survived ("the second survivor of the last backward pass that began a gradient"), phases. It is the same for all
units that do the same, wherever in the run they stand.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.op import Alloc, Begin, EmptyCache, Free, Phase, Unit
from tunecast.tape.sizes import SizeTable, comparable

ASK, FREE_OWN, FREE_OTHER, EMPTY = range(4)
CALL, BACKWARD = "call", "backward"
GAP = "gap"
LEAST_SAMPLES = 5
"""Of different sizes, before sizes in between are computed."""
RESIDUES = (2, 4, 8, 16, 32, 64, 128, 256)


class BlockOrigin(NamedTuple):
    group: str
    ordinal: int
    survivor: int


class Shape(NamedTuple):
    """What one traced unit did."""

    structure: array[int]
    sizes: array[int]
    survivors: list[int]
    """Blocks of its own that live on, in the order they were made."""
    born: list[int]
    """All its blocks, in that order."""
    phases: list[tuple[int, Phase]]
    """After how many rows each begins."""


class Placed(NamedTuple):
    """A unit in the run."""

    group: str
    """By which other units name it."""
    kind: str
    """Units of one kind do the same."""
    sizes: tuple[int, ...]


class UnitOrder:
    """Which kind each unit is of, by those before it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Placed, int]] = []
        """Of calls since the last backward pass: with which structure."""
        self.gap_survivors = 0
        self.backwards = 0
        """Since gradients were let go of."""
        self.traced_backwards = 0

    def place(self, unit: Unit, *, as_traced: bool) -> Placed:
        """`as_traced`: by the gradients that were there when it was traced; else by those of the whole run."""
        if unit.name == CALL:
            name = f"{CALL} {unit.detail}"
            return Placed(name, name, unit.sizes)
        before = self.traced_backwards if as_traced else self.backwards
        if unit.name != BACKWARD:
            name = unit.name if before else f"{unit.name} of nothing"
            return Placed(name, name, unit.sizes)
        group = f"{BACKWARD} {'again' if before else 'first'}"
        calls = " ".join(f"{placed.kind}/{variant}" for placed, variant in self.calls)
        sizes = tuple(size for placed, _ in self.calls for size in placed.sizes)
        return Placed(group, f"{group} of {calls} and {self.gap_survivors}", sizes)

    def go_past(self, unit: Unit, placed: Placed, variant: int) -> None:
        if unit.name == CALL and unit.keeps_graph:
            self.calls.append((placed, variant))
        elif unit.name == BACKWARD:
            self.calls = []
            self.backwards += 1
            self.traced_backwards += unit.traced
        elif unit.name == "zero_grad":
            self.backwards = self.traced_backwards = 0


class Origins:
    """Where blocks that live on were made, in the words of structures."""

    def __init__(self) -> None:
        self.groups: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.of: dict[int, BlockOrigin] = {}

    def begin(self, group: str) -> int:
        self.groups.setdefault(group, len(self.groups))
        self.counts[group] = self.counts.get(group, 0) + 1
        return self.counts[group] - 1

    def add(self, group: str, ordinal: int, survivors: Iterable[int]) -> None:
        for number, block in enumerate(survivors):
            self.of[block] = BlockOrigin(group, ordinal, number)

    def reference(self, block: int) -> tuple[int, int, int]:
        """The group by its number, how many of it came since, and which survivor; of a block that nobody knows, as the
        oldest of all."""
        origin = self.of.get(block)
        if origin is None:
            return -1, 0, 0
        return self.groups[origin.group], self.counts[origin.group] - 1 - origin.ordinal, origin.survivor


def shape_of(events: Iterable[Any], origins: Origins) -> Shape:
    """Of events; an allocation may be a triple `(block, bytes, stream)`."""
    rows, sizes = array("q"), array("q")
    own: dict[int, int] = {}
    dead: set[int] = set()
    frees: list[tuple[int, ...]] = []

    phases: list[tuple[int, Phase]] = []
    count = 0

    def settle() -> None:
        for row in sorted(frees):
            rows.extend(row)
        frees.clear()

    for event in events:
        kind = type(event)
        if kind is Free:
            count += 1
            block = event.block
            if block in own:
                frees.append((FREE_OWN, own[block]))
                dead.add(block)
            else:
                frees.append((FREE_OTHER, *origins.reference(block)))
        elif kind is Alloc or kind is tuple:
            settle()
            block, nbytes, stream = (event.block, event.nbytes, event.stream) if kind is Alloc else event
            own[block] = len(own)
            rows.extend((ASK, stream))
            count += 1
            sizes.append(max(0, nbytes))
        elif kind is Begin:
            settle()
            phases.append((count, event.phase))
        elif kind is EmptyCache:
            settle()
            count += 1
            rows.append(EMPTY)
    settle()
    return Shape(rows, sizes, [block for block in own if block not in dead], list(own), phases)


class Samples:
    """All that was traced of one kind: structures, and the sizes of each."""

    def __init__(self) -> None:
        self.structures: list[bytes] = []
        self.shapes: list[Shape] = []
        """The first of each structure."""
        self.seen: list[tuple[tuple[int, ...], int]] = []
        """The variables of every sample, and its structure."""
        self._sizes: list[list[tuple[tuple[int, ...], array[int]]]] = []
        self._tables: dict[int, SizeTable] = {}
        self._shortened: tuple[int, int, Samples] | None = None

    def add(self, variables: tuple[int, ...], shape: Shape) -> int:
        structure = shape.structure.tobytes()
        if structure in self.structures:
            number = self.structures.index(structure)
        else:
            number = len(self.structures)
            self.structures.append(structure)
            self.shapes.append(shape)
            self._sizes.append([])
        known = self._sizes[number]
        if not any(v == variables and s == shape.sizes for v, s in known):
            known.append((variables, shape.sizes))
            self._tables.pop(number, None)
        self.seen.append((variables, number))
        return number

    def table(self, structure: int) -> SizeTable:
        if structure not in self._tables:
            self._tables[structure] = SizeTable(self._sizes[structure])
        return self._tables[structure]

    def structure_at(self, variables: tuple[int, ...]) -> int | None:
        """Which structure a unit with these sizes has; None where the samples do not show it."""
        steady = self._steady()
        same = [number for seen, number in steady if seen == variables]
        if len(same) > 1 and len(set(same)) == 1:
            return same[0]
        steady = [steady[n] for n in comparable(variables, [seen for seen, _ in steady])]
        if len({seen for seen, _ in steady}) < LEAST_SAMPLES or not _within(variables, [v for v, _ in steady]):
            return None
        if len({number for _, number in steady}) == 1:
            return steady[0][1]
        found = {
            choice
            for column in range(len(variables))
            for choice in _choices([(seen[column], number) for seen, number in steady], variables[column])
        }
        return found.pop() if len(found) == 1 else None

    def of_first(self, count: int) -> Samples:
        """As if only so many variables were known."""
        if self._shortened is None or self._shortened[:2] != (count, len(self.seen)):
            short = Samples()
            short.structures, short.shapes = self.structures, self.shapes
            short.seen = [(variables[:count], number) for variables, number in self.seen]
            short._sizes = [[(variables[:count], sizes) for variables, sizes in known] for known in self._sizes]
            self._shortened = count, len(self.seen), short
        return self._shortened[2]

    def _steady(self) -> list[tuple[tuple[int, ...], int]]:
        """Without the first ones that did what none did later: they made what is there from then on."""
        start = 0
        while start < len(self.seen) - 1 and self.seen[start][1] not in [n for _, n in self.seen[start + 1 :]]:
            start += 1
        return self.seen[start:]

    def sizes_at(self, variables: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
        """Structure and sizes of its courses; None where they are not shown."""
        structure = self.structure_at(variables)
        sizes = None if structure is None else self.table(structure).at(variables)
        return None if structure is None or sizes is None else (structure, sizes)


def _within(variables: Sequence[int], seen: Sequence[Sequence[int]]) -> bool:
    columns = zip(variables, zip(*seen, strict=True), strict=True)
    return all(min(column) <= value <= max(column) for value, column in columns)


def _choices(seen: Sequence[tuple[int, int]], value: int) -> set[int | None]:
    """What rules that hold for all samples say of a value: structure by whether it is a multiple of something, or by
    whether it is above something."""
    found: set[int | None] = set()
    if len({x for x, _ in seen}) < 2:
        return found
    for multiple in RESIDUES:
        rule: dict[bool, int] = {}
        if all(rule.setdefault(x % multiple == 0, number) == number for x, number in seen) and len(rule) == 2:
            found.add(rule[value % multiple == 0])
    ordered = sorted(seen)
    changes = [n for n in range(1, len(ordered)) if ordered[n][1] != ordered[n - 1][1]]
    if len(changes) == len({number for _, number in seen}) - 1 and all(
        ordered[n][0] != ordered[n - 1][0] for n in changes
    ):
        below = [number for x, number in ordered if x <= value]
        above = [number for x, number in ordered if x >= value]
        found.add(below[-1] if below and above and below[-1] == above[0] else None)
    return found
