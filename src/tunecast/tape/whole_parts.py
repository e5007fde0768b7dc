"""What a whole run (whole_run.py) is put together from: its units and gaps, and the rows of each structure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from tunecast.records import NamedTuple
from tunecast.tape.op import Phase, Unit
from tunecast.tape.units import EMPTY, FREE_OTHER, Samples, Shape


class RunPart(NamedTuple):
    """A unit or, with none, a gap."""

    unit: Unit | None
    group: str
    start: int
    end: int
    shape: Shape
    """Of a skipped unit, of what the script itself let go of meanwhile."""
    structure: int = -1
    kind: str = ""
    sizes: tuple[int, ...] = ()
    step: int = 0


class Chosen(NamedTuple):
    """What a unit does in the whole run."""

    kind: str
    structure: int
    sizes: tuple[int, ...]
    """Of its courses (sizes.py)."""
    group: str


def tokens(structure: array[int]) -> Iterator[tuple[int, ...]]:
    """The rows of a structure."""
    rows = iter(structure)
    for code in rows:
        if code == EMPTY:
            yield (code,)
        elif code == FREE_OTHER:
            yield code, next(rows), next(rows), next(rows)
        else:
            yield code, next(rows)


class UnitTemplate:
    """A structure's rows among those of all."""

    def __init__(self, kind: str, number: int, samples: Samples, phases: list[tuple[int, Phase]]) -> None:
        self.kind, self.number, self.samples = kind, number, samples
        self.shape = samples.shapes[number]
        self.rows = list(tokens(self.shape.structure))
        self.phases = phases
        own = {block: place for place, block in enumerate(self.shape.born)}
        self.survivors = [own[block] for block in self.shape.survivors]
        references: dict[tuple[int, int], list[int]] = {}
        for row in self.rows:
            if row[0] == FREE_OTHER:
                references.setdefault((row[1], row[2]), []).append(row[3])
        self.references = {key: frozenset(survivors) for key, survivors in references.items()}
        """By group and how many of it came since: which survivors it frees."""
        self.targets: dict[tuple[int, int], UnitTemplate | None] = {}
        """Whose rows these were when its own were written."""
        self.base = -1
        self.names: list[int] = []
        """Of the survivors."""
        self.foreign: dict[tuple[int, int, int], int] = {}
        self.stretches: list[tuple[Phase, int, int, tuple[int, ...]]] = []
        self.tables: dict[tuple[int, ...], int] = {}
        self.last: Instance | None = None


class Instance:
    """A unit or gap as it was played: what its survivors go by now."""

    __slots__ = ("gone", "moved", "names", "template")

    def __init__(self, names: Sequence[int], template: UnitTemplate | None = None) -> None:
        self.names, self.template = names, template
        self.gone: frozenset[int] | set[int] = frozenset()
        self.moved: dict[int, int] = {}

    def take(self, survivor: int) -> int | None:
        """The name of one that dies now; None where it is gone, or never was."""
        if survivor in self.gone or survivor >= len(self.names):
            return None
        if not isinstance(self.gone, set):
            self.gone = set(self.gone)
        self.gone.add(survivor)
        return self.moved.get(survivor, self.names[survivor])

    def alive(self) -> list[int]:
        if len(self.gone) == len(self.names):
            return []
        return [survivor for survivor in range(len(self.names)) if survivor not in self.gone]


def before(by_group: dict[int, list[int]], group: int, back: int) -> int:
    """The part of a group that so many came after; -1: there is none."""
    parts = by_group.get(group, ())
    return parts[-1 - back] if back < len(parts) else -1
