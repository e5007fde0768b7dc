"""Plots and tables for the docs, drawn from benchmark results with the standard library alone. Functions only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple, Protocol

GIB = 2**30
WIDTH, HEIGHT, ERRORS_HEIGHT = 640, 520, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 52
LINEAR = 1e-4
"""Errors up to this size are drawn on a linear axis, so that none at all has its place too."""
OTHERS = "#57606a"
"""Of a series without a mark of its own."""
PUBLISHED = "published: "
POINTERS = (
    "GitHub shows the pictures as they are; opened from a checkout in a browser, they name each point's run and error "
    "under the pointer."
)
"""What a page says of them."""


class Mark(NamedTuple):
    colour: str
    hollow: bool = False


MARKS = {
    **{"tunecast": Mark("#1f6feb"), "H200, benchmark": Mark("#1f6feb"), "H200, predicted first": Mark("#1f6feb", True)},
    **{"fitcheck-llm": Mark("#d29922"), "vramcalc": Mark("#d29922", True)},
    **{"torchtune": Mark("#2da44e"), "litgpt": Mark("#cf222e"), "transformers": Mark("#8250df")},
    **{"trl": Mark("#0a7d91"), "trl, fms-acceleration": Mark("#0a7d91", True), "llm-foundry": Mark("#bf3989")},
    **{
        "torchtitan": Mark("#9a6700"),
        "torchtitan, torchao": Mark("#9a6700", True),
        "fsdp_qlora": Mark("#8250df", True),
    },
    **{"megatron": Mark("#116329"), "nemo": Mark("#116329", True), "fms-fsdp": Mark("#e16f24")},
    **{"MLPerf, NVIDIA": Mark("#74a402"), "MLPerf, AMD": Mark("#74a402", True)},
}
"""One meaning each in every picture: tunecast's own runs, other tools, and whose training code ran. Apart from each
other on white and on dark grey alike."""


class Unit(NamedTuple):
    name: str
    size: float


BYTES, SECONDS = Unit("GiB", GIB), Unit("s", 1.0)
"""What points are given in, by the unit they are drawn in."""


class Point(NamedTuple):
    label: str
    series: str
    measured: float
    predicted: float
    unit: Unit = BYTES


class Confusion(NamedTuple):
    """Runs by what was predicted and what happened."""

    both_complete: int
    wrongly_completes: int
    wrongly_stops: int
    both_stop: int

    @property
    def right(self) -> int:
        return self.both_complete + self.both_stop

    @property
    def total(self) -> int:
        return sum(self)


def scatter_svg(points: Sequence[Point], title: str, *, band: float = 0.1) -> str:
    """Predicted against measured on logarithmic axes, with the line of equality and a band of `band` either way.

    Every point has a tooltip (its label, both sizes, the signed error); a series looks the same in every picture.
    """
    if not points:
        raise ValueError("a scatter plot needs a point")
    place = _Scale(*_range(points))
    axes = [*_axes(place, points[0].unit), *_band(place, band)]
    return _drawn(title, HEIGHT, axes, points, place, Legend(LEFT + 14, TOP + 16))


def errors_svg(points: Sequence[Point], title: str) -> str:
    """The signed error of each point over its measured size. The axis is linear up to a hundredth of a percent, where
    most lie, and logarithmic beyond, where the worst can be read."""
    if not points:
        raise ValueError("a plot of errors needs a point")
    low, high = _range(points)
    place = _ErrorScale(low, high, max(abs(error_of(point)) for point in points))
    rows = -(-len({point.series for point in points}) // LEGEND_COLUMNS)
    height = ERRORS_HEIGHT + rows * LEGEND_LINE + 6
    legend = Legend(LEFT + 6, ERRORS_HEIGHT + 12, LEGEND_COLUMNS)
    return _drawn(title, height, _error_axes(place, points[0].unit), points, place, legend)


def error_of(point: Point) -> float:
    return point.predicted / point.measured - 1


LEGEND_LINE, LEGEND_COLUMNS = 18, 2


class Legend(NamedTuple):
    """Where the first entry stands, and how many stand side by side."""

    x: int
    y: int
    columns: int = 1


def _drawn(title: str, height: int, axes: list[str], points: Sequence[Point], place: _Placing, legend: Legend) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#57606a">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="600">{escape(title)}</text>',
        *axes,
    ]
    for number, name in enumerate(dict.fromkeys(point.series for point in points)):
        colour, hollow = MARKS.get(name.removeprefix(PUBLISHED), Mark(OTHERS))
        style = f'fill="none" stroke="{colour}"' if hollow else f'fill="{colour}" fill-opacity="0.65"'
        chosen = [point for point in points if point.series == name]
        parts += [_mark(place, point, style) for point in chosen]
        row, column = divmod(number, legend.columns)
        x, y = legend.x + column * (WIDTH - LEFT - RIGHT) // legend.columns, legend.y + row * LEGEND_LINE
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4" {style}/>')
        parts.append(f'<text x="{x + 10}" y="{y}">{escape(name)} ({len(chosen)})</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Placing(Protocol):
    def at(self, point: Point) -> tuple[float, float]: ...


class _Scale:
    """Sizes in a unit to pixels, the same on both axes."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high
        self._span = math.log(high / low)

    def x(self, size: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(size / self.low) / self._span

    def y(self, size: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(size / self.low) / self._span

    def at(self, point: Point) -> tuple[float, float]:
        return self.x(point.measured / point.unit.size), self.y(point.predicted / point.unit.size)


class _ErrorScale(_Scale):
    """The same to the right; errors upwards."""

    def __init__(self, low: float, high: float, most: float) -> None:
        super().__init__(low, high)
        self._most = _folded(max(most, 10 * LINEAR) * 1.3)

    def y(self, error: float) -> float:
        middle, half = (TOP + ERRORS_HEIGHT - BOTTOM) / 2, (ERRORS_HEIGHT - TOP - BOTTOM) / 2
        return middle - half * _folded(error) / self._most

    def at(self, point: Point) -> tuple[float, float]:
        return self.x(point.measured / point.unit.size), self.y(error_of(point))


def _folded(error: float) -> float:
    """Linear up to `LINEAR`, then a unit more for each factor of ten."""
    size = abs(error) / LINEAR
    return math.copysign(size if size <= 1 else 1 + math.log10(size), error)


def _range(points: Sequence[Point]) -> tuple[float, float]:
    """Of both axes, in the unit they are drawn in: a tenth wider than the points."""
    sizes = [size / point.unit.size for point in points for size in (point.measured, point.predicted)]
    if min(sizes) <= 0:
        raise ValueError("a logarithmic axis needs sizes above 0")
    return min(sizes) / 1.1, max(sizes) * 1.1


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten that lie in the range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [step * 10.0**power for power in range(first, last + 1) for step in (1, 2, 5)]
    return [value for value in values if low <= value <= high]


def _axes(place: _Scale, unit: Unit) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in ticks(place.low, place.high):
        x, y = place.x(value), place.y(value)
        grid = 'stroke="#8c959f" stroke-opacity="0.25"'
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" {grid}/>')
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" {grid}/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (TOP + bottom) / 2
    upright = f'x="16" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 16 {middle:.1f})"'
    parts += [
        f'<text x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 14}" text-anchor="middle">measured, {unit.name}</text>',
        f"<text {upright}>predicted, {unit.name}</text>",
    ]
    return parts


def _error_axes(place: _ErrorScale, unit: Unit) -> list[str]:
    bottom, right = ERRORS_HEIGHT - BOTTOM, WIDTH - RIGHT
    sizes = [LINEAR * 10.0**power for power in range(6)]
    parts = []
    for error in (0.0, *sizes, *(-size for size in sizes)):
        y = place.y(error)
        if not TOP <= y <= bottom:
            continue
        line = 'stroke="#57606a" stroke-dasharray="4 3"' if error == 0 else 'stroke="#8c959f" stroke-opacity="0.25"'
        label = f"{error * 100:+g} %" if error else "exact"
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" {line}/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for value in ticks(place.low, place.high):
        x = place.x(value)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#8c959f" stroke-opacity="0.25"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    across = f'x="{(LEFT + right) / 2:.1f}" y="{ERRORS_HEIGHT - 14}" text-anchor="middle"'
    return [*parts, f"<text {across}>measured, {unit.name}</text>"]


def _band(place: _Scale, band: float) -> list[str]:
    """The line of equality and what lies within `band` of it, cut to the frame."""
    low, high = place.low, place.high
    above = [(low, low * (1 + band)), (high / (1 + band), high), (high, high)]
    below = [(high, high * (1 - band)), (low / (1 - band), low), (low, low)]
    corners = " ".join(f"{place.x(m):.1f},{place.y(p):.1f}" for m, p in (*above, *below))
    ends = f'x1="{place.x(low):.1f}" y1="{place.y(low):.1f}" x2="{place.x(high):.1f}" y2="{place.y(high):.1f}"'
    note = f'x="{WIDTH - RIGHT - 4}" y="{HEIGHT - BOTTOM - 8}" text-anchor="end"'
    return [
        f'<polygon points="{corners}" fill="#8c959f" fill-opacity="0.15"/>',
        f'<line {ends} stroke="#57606a" stroke-dasharray="4 3"/>',
        f"<text {note}>band: within {band:.0%}</text>",
    ]


def _mark(place: _Placing, point: Point, style: str) -> str:
    x, y = place.at(point)
    unit = point.unit
    measured, predicted = point.measured / unit.size, point.predicted / unit.size
    sizes = f"measured {measured:.2f} {unit.name}, predicted {predicted:.2f}"
    told = f"{point.label}: {sizes} ({predicted / measured - 1:+.2%})"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {style}><title>{escape(told)}</title></circle>'


def public_points(rows: Iterable[dict[str, Any]], tool: str = "tunecast") -> list[Point]:
    """Of the rows of results/public_memory.json, those `tool` answers, a series a stack."""
    return [
        Point(
            f"{row['id']} {row['about']}, {row['kind']}",
            row["stack"],
            row["measured_bytes"],
            row["measured_bytes"] * (1 + row["error"][tool]),
        )
        for row in rows
        if tool in row["error"]
    ]


def run_points(rows: Iterable[dict[str, Any]], field: str = "allocated_bytes") -> list[Point]:
    """Of the rows of results/memory.json or memory_analytic.json, those with an error, a series a kind of run."""
    return [
        Point(row["id"], row["kind"], row["measured"][field], row["predicted"][field]) for row in rows if "error" in row
    ]


def confusion(pairs: Iterable[tuple[bool, bool]]) -> Confusion:
    """Of runs that were said to complete or not, and did or did not."""
    count = {(said, ran): 0 for said in (True, False) for ran in (True, False)}
    for pair in pairs:
        count[pair] += 1
    return Confusion(count[True, True], count[True, False], count[False, True], count[False, False])


def confusion_table(found: Confusion) -> list[str]:
    """Markdown, as `figures.table` writes it."""
    rows = [
        ["predicted: completes", found.both_complete, found.wrongly_completes],
        ["predicted: out of memory", found.wrongly_stops, found.both_stop],
    ]
    return [
        f"| {found.right} of {found.total} called right | measured: completes | measured: out of memory |",
        "|---|---|---|",
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
        "",
    ]
