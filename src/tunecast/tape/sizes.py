"""How many bytes each request of a call asks for, as a function of the sizes of the call's inputs.

A training script calls its model over and over with batches of other lengths. Of a few of these calls every request was
traced. What the others ask for is computed, and only where the traced ones leave no doubt: for every request all
formulas below that agree with every sample must agree on the new value.

    constant                          weights, workspaces
    a f(x) + b                        activations, masks; x is one of the sizes, f is x, x squared, or x times itself
                                      rounded up (attention kernels pad to 8 to 256)
    a x squared + b x + c

The coefficients are whole numbers. A formula needs two samples more than it has coefficients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import zip_longest

MULTIPLES = (1, 8, 16, 32, 64, 128, 256)
MORE_SAMPLES = 2
"""Than a formula has coefficients."""


def _rounded_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def _features(x: int) -> list[int]:
    up = [_rounded_up(x, multiple) for multiple in MULTIPLES]
    return [*up, *(x * each for each in up), *(each * each for each in up[1:])]


class Formulas:
    """The formulas of one variable for one row, by its samples."""

    def __init__(self, xs: Sequence[int], sizes: Sequence[int]) -> None:
        points = dict(zip(xs, sizes, strict=True))
        self._lines: list[tuple[int, int, int]] = []
        """The feature, slope and offset."""
        self._curve: tuple[Fraction, Fraction, Fraction] | None = None
        if any(points[x] != size for x, size in zip(xs, sizes, strict=True)):
            return  # one input, two sizes: something else decides
        if len(points) >= 2 + MORE_SAMPLES:
            known = [(_features(x), size) for x, size in points.items()]
            for place in range(len(known[0][0])):
                line = _line([(features[place], size) for features, size in known])
                if line is not None:
                    self._lines.append((place, *line))
        if len(points) >= 3 + MORE_SAMPLES:
            self._curve = _curve(list(points.items()))

    def values(self, x: int) -> set[int]:
        features = _features(x)
        found = {slope * features[place] + offset for place, slope, offset in self._lines}
        if self._curve is not None:
            a, b, c = self._curve
            value = (a * x + b) * x + c
            if value.denominator == 1:
                found.add(int(value))
        return found


def _line(points: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    (first, size), rest = points[0], points[1:]
    other = next(((f, s) for f, s in rest if f != first), None)
    if other is None or len({f for f, _ in points}) < 2 + 1:  # two points of a line show nothing
        return None
    slope, left = divmod(other[1] - size, other[0] - first)
    if left:
        return None
    offset = size - slope * first
    return (slope, offset) if all(slope * f + offset == s for f, s in rest) else None


def _curve(points: Sequence[tuple[int, int]]) -> tuple[Fraction, Fraction, Fraction] | None:
    (x0, y0), (x1, y1), (x2, y2) = points[:3]
    d01, d12 = Fraction(y1 - y0, x1 - x0), Fraction(y2 - y1, x2 - x1)
    a = (d12 - d01) / (x2 - x0)
    if a == 0:
        return None
    b = d01 - a * (x0 + x1)
    c = y0 - (a * x0 + b) * x0
    return (a, b, c) if all((a * x + b) * x + c == y for x, y in points[3:]) else None


def comparable(variables: tuple[int, ...], seen: Sequence[tuple[int, ...]]) -> list[int]:
    """Which samples show something of a unit with these variables: those that differ from it in the same ones. Where
    the last batch of an epoch has fewer rows, for example, other lengths of the same number of rows."""
    differs = [frozenset(n for n, (a, b) in enumerate(zip(variables, each, strict=True)) if a != b) for each in seen]
    most = Counter(each for each in differs if each).most_common(1)
    return [n for n, each in enumerate(differs) if not each or (most and each <= most[0][0])]


class SizeTable:
    """The distinct courses of sizes over the samples of one structure; of each row, which it takes."""

    def __init__(self, samples: Sequence[tuple[tuple[int, ...], Sequence[int]]]) -> None:
        self.samples = samples
        numbers: dict[tuple[int, ...], int] = {}
        self.places = [numbers.setdefault(row, len(numbers)) for row in zip(*(s for _, s in samples), strict=True)]
        self.courses = list(numbers)
        self._fits: dict[tuple[int, ...], _Fit] = {}
        self._found: dict[tuple[int, ...], tuple[int, ...] | None] = {}

    def of_sample(self, number: int) -> tuple[int, ...]:
        return tuple([course[number] for course in self.courses])

    def at(self, variables: tuple[int, ...]) -> tuple[int, ...] | None:
        """The sizes of the courses for these variables; None where they are not shown."""
        if variables not in self._found:
            self._found[variables] = self._shown(variables)
        return self._found[variables]

    def bounds(self, variables: tuple[int, ...]) -> list[tuple[int, int]]:
        """Where they are not shown: of each course the least and most that any formula says, or any sample has."""
        fit = self._fit(variables)
        found = []
        for place, course in enumerate(self.courses):
            values = fit.values(place, variables) or set(course)
            found.append((min(values), max(values)))
        return found

    def _shown(self, variables: tuple[int, ...]) -> tuple[int, ...] | None:
        alike = [n for n, (seen, _) in enumerate(self.samples) if seen == variables]
        if alike:
            same = all(course[n] == course[alike[0]] for course in self.courses for n in alike)
            return self.of_sample(alike[0]) if same else None
        fit = self._fit(variables)
        if not fit.holds_for(variables):
            return None
        found = []
        for place in range(len(self.courses)):
            values = fit.values(place, variables)
            if len(values) != 1:
                return None
            found.append(values.pop())
        return tuple(found)

    def _fit(self, variables: tuple[int, ...]) -> _Fit:
        chosen = tuple(comparable(variables, [seen for seen, _ in self.samples]))
        if chosen not in self._fits:
            self._fits[chosen] = _Fit(
                [self.samples[n][0] for n in chosen], [[course[n] for n in chosen] for course in self.courses]
            )
        return self._fits[chosen]


class _Fit:
    """Formulas of samples that can be compared."""

    def __init__(self, seen: Sequence[tuple[int, ...]], courses: Sequence[Sequence[int]]) -> None:
        self._seen, self._courses = seen, courses
        self._columns, self._goes_with = _columns(seen)
        self._formulas: dict[int, list[Formulas]] = {}
        self._different = len(set(seen))

    def holds_for(self, variables: tuple[int, ...]) -> bool:
        """What never varied still does not, and what went together still does."""
        return bool(self._columns) and all(
            variables[column] == (self._seen[0][column] if other is None else variables[other])
            for column, other in enumerate(self._goes_with)
        )

    def values(self, place: int, variables: tuple[int, ...]) -> set[int]:
        """All that formulas say which agree with the samples."""
        course = self._courses[place]
        if self._different > MORE_SAMPLES and len(set(course)) == 1:
            return {course[0]}
        if place not in self._formulas:
            self._formulas[place] = [Formulas([seen[c] for seen in self._seen], course) for c in self._columns]
        found: set[int] = set()
        for column, formulas in zip(self._columns, self._formulas[place], strict=True):
            found |= formulas.values(variables[column])
        return {value for value in found if value >= 0}


def _columns(rows: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int | None]]:
    """Of the variables those that vary, each of those that go together once; and of each with which it goes, None where
    it does not vary."""
    seen: dict[tuple[int, ...], int] = {}
    goes_with: list[int | None] = []
    for number, column in enumerate(zip(*rows, strict=True)):
        goes_with.append(seen.setdefault(column, number) if len(set(column)) > 1 else None)
    return list(seen.values()), goes_with


def distance(one: Sequence[int], other: Sequence[int]) -> int:
    """Between the sizes of two units' inputs."""
    return sum(abs(a - b) for a, b in zip_longest(one, other, fillvalue=0))
