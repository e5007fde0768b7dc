"""Cost against time: axes for the terminal and the page, and the plot of the terminal.

Both axes are logarithmic: machines differ by factors, and a step to the left is the same factor everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, floor, log, log10

from tunecast.planning.choice import Choice, Plan
from tunecast.records import NamedTuple
from tunecast.report.draw.text import Terminal
from tunecast.units import GIB, HOUR_S, digits

MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Of the front's points, the cheapest first."""
BEYOND = "*"
"""Of those for which there is no letter left."""
ROWS = 15
FEWEST, MOST = 4, 8
"""Ticks of an axis."""
_MINUTE_S, _DAY_S = 60, 24 * HOUR_S
_UNITS = ((1, "s"), (_MINUTE_S, "min"), (HOUR_S, "h"), (_DAY_S, "d"))
_SIXTY = ((1, 10), (1, 5, 20), (1, 2, 5, 10, 20, 30), (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50))
_HOURS = ((1, 10), (1, 5), (1, 2, 4, 8, 12), (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22))
_DAYS = ((1, 10, 100, 1000), (1, 4, 20, 100, 365), (1, 2, 4, 7, 14, 30, 60, 120, 240, 365, 730),
         (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 21, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200))  # fmt: skip
_DECADE = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8))


class Tick(NamedTuple):
    value: float
    label: str


class Axis(NamedTuple):
    low: float
    high: float
    ticks: tuple[Tick, ...]

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        return log(max(value, self.low) / self.low) / log(self.high / self.low)


def time_axis(seconds: Iterable[float]) -> Axis:
    return _axis(seconds, _times, _time_label)


def money_axis(amounts: Iterable[float], sign: str) -> Axis:
    return _axis(amounts, _powers, lambda value: f"{sign}{value:,.10g}")


def size_axis(sizes_bytes: Iterable[float]) -> Axis:
    """Of memory; `place` takes GiB."""
    return _axis((nbytes / GIB for nbytes in sizes_bytes), _powers, lambda value: f"{value:,.10g} GiB")


def step_axis(seconds: Iterable[float]) -> Axis:
    """Of what takes seconds or parts of one; of longer ones as `time_axis`."""
    known = list(seconds)
    return time_axis(known) if max(known, default=0) > _MINUTE_S else _axis(known, _powers, _time_label)


def _axis(
    values: Iterable[float], ticks: Callable[[float, float, int], list[float]], label: Callable[[float], str]
) -> Axis:
    """Some of it to spare at either end, and a factor of 1.6 at least: what is alike shall look alike."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = min(known), max(known)
    margin = max((high / low) ** 0.06, 1.6**0.5 if high / low < 1.6 else 1.0)
    low, high = low / margin, high * margin
    found: list[float] = []
    for fineness in range(len(_DECADE)):
        finer = ticks(low, high, fineness)
        if len(finer) > MOST and found:
            break
        found = finer
        if len(found) >= FEWEST:
            break
    if len(found) < FEWEST - 1:
        found = _evenly(low, high)
    every = ceil(len(found) / MOST)
    return Axis(low, high, tuple(Tick(value, label(value)) for value in found[::every]))


def _times(low_s: float, high_s: float, fineness: int) -> list[float]:
    steps = ((1, _SIXTY, _MINUTE_S), (_MINUTE_S, _SIXTY, HOUR_S), (HOUR_S, _HOURS, _DAY_S), (_DAY_S, _DAYS, None))
    made = (
        unit_s * step
        for unit_s, sizes, end_s in steps
        for step in sizes[fineness]
        if end_s is None or unit_s * step < end_s
    )
    return [value for value in made if low_s <= value <= high_s]


def _powers(low: float, high: float, fineness: int) -> list[float]:
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    made = (round(digit * 10.0**power, 12) for power in decades for digit in _DECADE[fineness])
    return [value for value in made if low <= value <= high]


def _evenly(low: float, high: float) -> list[float]:
    """Three, to two digits, where nothing round lies in between."""
    return sorted({float(f"{low * (high / low) ** part:.2g}") for part in (0.15, 0.5, 0.85)})


def _time_label(seconds: float) -> str:
    unit_s, name = next((unit for unit in reversed(_UNITS) if seconds >= unit[0]), _UNITS[0])
    return f"{digits(seconds / unit_s)} {name}"


class PlotPoint(NamedTuple):
    choice: Choice
    mark: str
    """'' where it is not of the front."""


def points(plan: Plan) -> list[PlotPoint]:
    """The front, the cheapest first, then the other hardware."""
    front = [PlotPoint(one, MARKS[index] if index < len(MARKS) else BEYOND) for index, one in enumerate(plan.pareto)]
    known = {id(one) for one in plan.pareto}
    others = [one for one in (*plan.choices, *filter(None, plan.picks.values())) if id(one) not in known]
    return front + [PlotPoint(one, "") for one in {id(one): one for one in others}.values()]


def axes(plan: Plan, drawn: Sequence[PlotPoint], *, ranges: bool = False) -> tuple[Axis, Axis]:
    """(time, money in the currency that is shown); `ranges`: wide enough for those of the front, too."""
    front = [point.choice for point in drawn if point.mark] if ranges else []
    seconds = [point.choice.total_s for point in drawn] + [end for one in front for end in one.total_range_s]
    usd = [point.choice.total_usd for point in drawn] + [end for one in front for end in one.usd_range]
    money = plan.money
    unit = 1 / money.rate.usd_per_eur if money.eur else 1.0
    return time_axis(seconds), money_axis((unit * each for each in usd), "" if money.eur else "$")


def plot(plan: Plan, terminal: Terminal, rows: int = ROWS) -> list[str]:
    """Letters are the front, dots the rest. Nothing where there is but one point."""
    drawn = points(plan)
    if len(drawn) < 2:
        return []
    across, up = axes(plan, drawn)
    unit = 1 / plan.money.rate.usd_per_eur if plan.money.eur else 1.0
    labels = max(len(tick.label) for tick in up.ticks)
    wide = terminal.width - labels - 5
    cells: dict[tuple[int, int], str] = {}
    dot = "·" if terminal.unicode else "."
    for point in drawn:
        row = round((1 - up.place(unit * point.choice.total_usd)) * (rows - 1))
        column = round(across.place(point.choice.total_s) * (wide - 1))
        if point.mark:
            cells[row, _free(cells, row, column, wide)] = point.mark
        else:
            cells.setdefault((row, column), dot)
    at = {round((1 - up.place(tick.value)) * (rows - 1)): tick.label for tick in up.ticks}
    bar, tee, line = ("│", "┤", "─") if terminal.unicode else ("|", "+", "-")
    lines = []
    for row in range(rows):
        label = at.get(row, "")
        edge = terminal.paint(f"  {label:>{labels}} {tee if label else bar}", "dim")
        lines.append(edge + "".join(_painted(row, wide, cells, dot, terminal)).rstrip())
    return [*lines, *(terminal.paint(text, "dim") for text in _foot(across, labels, wide, line, terminal))]


def _free(cells: dict[tuple[int, int], str], row: int, column: int, wide: int) -> int:
    """Its own column, or the next one no other letter has."""
    order = sorted(range(wide), key=lambda other: (abs(other - column), other))
    return next((other for other in order if (row, other) not in cells), column)


def _painted(row: int, wide: int, cells: dict[tuple[int, int], str], dot: str, terminal: Terminal) -> Iterator[str]:
    for column in range(wide):
        cell = cells.get((row, column), " ")
        yield cell if cell == " " else terminal.paint(cell, "dim" if cell == dot else "good")


def _foot(across: Axis, labels: int, wide: int, line: str, terminal: Terminal) -> list[str]:
    """The axis of time with its ticks; a label that would touch the one before is left out."""
    corner, tee = ("└", "┬") if terminal.unicode else ("+", "+")
    edge, names = [line] * wide, ""
    for tick in across.ticks:
        column = round(across.place(tick.value) * (wide - 1))
        edge[column] = tee
        begin = min(max(0, column - len(tick.label) // 2), wide - len(tick.label))
        if begin >= len(names) + (2 if names else 0):
            names = f"{names:<{begin}}{tick.label}"
    left = " " * (labels + 4)
    return [f"{left[:-1]}{corner}{''.join(edge)}", f"{left}{names}"]
