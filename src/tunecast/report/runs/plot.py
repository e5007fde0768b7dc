"""Predicted against measured: every run a point, the line where both are the same. In the terminal, and on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.errors import printable
from tunecast.records import NamedTuple
from tunecast.report.draw.text import DEFAULT, Terminal
from tunecast.report.page.document import Provenance, byline, document, panel, reproduction
from tunecast.report.page.markup import Markup, cell, lines, table, tag
from tunecast.report.plan.plot import Axis, size_axis, step_axis
from tunecast.report.run.time import duration
from tunecast.report.runs.text import MOST_POINTS, RunsShown, cards_words, headline, runs_words, spread_sentences
from tunecast.units import GIB, gib

ROWS, COLUMNS = 16, 56
DENSER = "·•●"
"""One run, a few, many in one place."""
ASCII_DENSER = ".o#"
MOST_ON_PAGE = 500
"""Rows of the page's table."""


class Compared(NamedTuple):
    """What is plotted: the measured and the predicted figure of a row."""

    title: str
    measured: str
    predicted: str
    ratio: str
    """None where the two are not of one thing: another card, or a run that did not end well."""


MEMORY = Compared("Memory", "memory_bytes", "predicted_memory_bytes", "memory_ratio")
TIME = Compared("Time per step", "step_s", "predicted_step_s", "time_ratio")


class RunPoint(NamedTuple):
    predicted: float
    measured: float
    row: Mapping[str, Any]


def points(rows: Sequence[Mapping[str, Any]], what: Compared) -> list[RunPoint]:
    """Of runs that were trained to their end, the newest."""
    unit = GIB if what is MEMORY else 1
    found = [
        RunPoint(row[what.predicted] / unit, row[what.measured] / unit, row)
        for row in rows
        if row[what.predicted] and row[what.measured] and row[what.ratio]
    ]
    return found[:MOST_POINTS]


def axis_of(drawn: Sequence[RunPoint], what: Compared) -> Axis:
    """One for both directions, so that the line is the diagonal."""
    ends = [end for point in drawn for end in (point.predicted, point.measured)]
    return size_axis(end * GIB for end in ends) if what is MEMORY else step_axis(ends)


def plot_text(rows: Sequence[Mapping[str, Any]], terminal: Terminal = DEFAULT) -> str:
    parts = ["\n".join(_plot(rows, what, terminal)) for what in (MEMORY, TIME)]
    told = [part for part in parts if part]
    if not told:
        return "Nothing to plot: no run has both a prediction and a measurement.\n"
    return terminal.plain("\n\n".join(told)) + "\n"


def _plot(rows: Sequence[Mapping[str, Any]], what: Compared, terminal: Terminal) -> Iterator[str]:
    drawn = points(rows, what)
    if not drawn:
        return
    axis = axis_of(drawn, what)
    counts: dict[tuple[int, int], int] = {}
    for point in drawn:
        place = _row(axis, point.measured), _column(axis, point.predicted)
        counts[place] = counts.get(place, 0) + 1
    line = {(_row(axis, _at(axis, column)), column) for column in range(COLUMNS)}
    labels = {_row(axis, tick.value): tick.label for tick in axis.ticks}
    width = max(map(len, labels.values()), default=0)
    yield terminal.paint(f"{what.title}: measured (up) against predicted (across), {runs_words(len(drawn))}", "bold")
    for row in range(ROWS):
        cells = "".join(
            _mark(counts.get((row, column), 0), (row, column) in line, terminal) for column in range(COLUMNS)
        )
        yield f"  {labels.get(row, ''):>{width}} {'│' if terminal.unicode else '|'}{cells.rstrip()}"
    yield f"  {'':>{width}} {'└' if terminal.unicode else '+'}{('─' if terminal.unicode else '-') * COLUMNS}"
    feet = ""
    for tick in axis.ticks:
        begin = min(max(0, _column(axis, tick.value) - len(tick.label) // 2), COLUMNS - len(tick.label))
        if begin >= len(feet) + (2 if feet else 0):
            feet = f"{feet:<{begin}}{tick.label}"
    yield f"  {'':>{width}}  {feet}"


def _mark(count: int, on_line: bool, terminal: Terminal) -> str:
    if not count:
        return ("╱" if terminal.unicode else "/") if on_line else " "
    marks = DENSER if terminal.unicode else ASCII_DENSER
    return terminal.paint(marks[0 if count == 1 else 1 if count < 10 else 2], "good")


def _row(axis: Axis, value: float) -> int:
    return round((1 - axis.place(value)) * (ROWS - 1))


def _column(axis: Axis, value: float) -> int:
    return round(axis.place(value) * (COLUMNS - 1))


def _at(axis: Axis, column: int) -> float:
    """The value of a column."""
    return float(axis.low * (axis.high / axis.low) ** (column / (COLUMNS - 1)))


def runs_page(shown: RunsShown, plotted: Sequence[Mapping[str, Any]], made: Provenance | None = None) -> str:
    """A page of its own: both plots, and the newest runs as a table that can be sorted."""
    told = [tag("p", sentence) for sentence in spread_sentences(shown)]
    by = byline(made)
    body = tag(
        "body",
        tag("header", tag("h1", headline(shown)), *told, tag("p", by) if by else Markup()),
        *(panel(f"{what.title}: measured against predicted", _svg(plotted, what)) for what in (MEMORY, TIME)),
        panel("Runs", _table(shown.rows[:MOST_ON_PAGE])),
        reproduction(made),
    )
    return document("Measured runs", ("timeline.css", "plan.css"), body, ("common.js", "plan.js"))


def _svg(rows: Sequence[Mapping[str, Any]], what: Compared) -> Markup:
    drawn = points(rows, what)
    if not drawn:
        return tag("p", "No run has both a prediction and a measurement.", class_="muted")
    axis = axis_of(drawn, what)
    places = [f"{100 * axis.place(tick.value):.2f}%" for tick in axis.ticks]
    shapes = [
        *(tag("line", x1=at, x2=at, y1="0", y2="100%", class_="grid") for at in places),
        *(
            tag("line", x1="0", x2="100%", y1=_up(axis, t.value), y2=_up(axis, t.value), class_="grid")
            for t in axis.ticks
        ),
        tag("line", x1="0", y1="100%", x2="100%", y2="0", class_="step"),
        *(_dot(axis, point, what) for point in drawn),
    ]
    up = (tag("span", tick.label, style=f"top:{_up(axis, tick.value)}") for tick in axis.ticks)
    across = (tag("span", tick.label, style=f"left:{at}") for tick, at in zip(axis.ticks, places, strict=True))
    picture = tag("svg", *shapes, role="group", aria_label=f"{what.title}: measured against predicted")
    return tag(
        "div",
        tag("div", tag("em", "measured, logarithmic"), *up, class_="axis"),
        tag("div", picture, tag("div", class_="tip", hidden="", role="status"), class_="plot"),
        tag("div", *across, tag("em", "predicted, logarithmic"), class_="feet"),
        class_="frame pareto",
    )


def _up(axis: Axis, value: float) -> str:
    return f"{100 - 100 * axis.place(value):.2f}%"


def _dot(axis: Axis, point: RunPoint, what: Compared) -> Markup:
    words = gib if what is MEMORY else duration
    row = point.row
    told = [
        f"{row['model'] or ''} {row['method'] or ''}".strip() or row["id"],
        f"{cards_words(row)}, {row['began'][:10]}",
        f"measured {words(row[what.measured])}, predicted {words(row[what.predicted])}",
    ]
    return tag(
        "g",
        tag("title", *lines(told)),
        tag("circle", cx=f"{100 * axis.place(point.predicted):.2f}%", cy=_up(axis, point.measured), r="3.5"),
        class_="dot other",
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    head = ("began", "state", "card", "model", "method", "memory", "predicted", "per step", "predicted", "id")
    made = (
        tag(
            "tr",
            cell(row["began"][:16].replace("T", " ")),
            cell(row["state"]),
            cell(cards_words(row)),
            cell(printable(row["model"] or "")),
            cell(row["method"] or ""),
            *(_figure(row[name], gib) for name in ("memory_bytes", "predicted_memory_bytes")),
            *(_figure(row[name], duration) for name in ("step_s", "predicted_step_s")),
            cell(row["id"][:8]),
        )
        for row in rows
    )
    return tag("div", table(head, made, "blocks all sortable"), class_="scroll")


def _figure(value: float | None, words: Any) -> Markup:
    return cell("") if value is None else cell(words(value), value=value, style="number")
