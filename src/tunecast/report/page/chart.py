"""The picture of `html`: areas of memory by role over the run, its phases and limits, and what the pointer tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import Any

from tunecast.hardware.spec import card_name
from tunecast.records import replace
from tunecast.report.draw.figures import Figures, short_source, shown
from tunecast.report.draw.moments import AFTER, Band, Moment, Timeline, steps
from tunecast.report.draw.text import when, words
from tunecast.report.page.document import panel
from tunecast.report.page.markup import Markup, joined, json_script, tag
from tunecast.units import GIB, KIB, MIB, gib

STACK = ("weights", "adapters", "optimizer", "gradients", "activations", "logits_and_loss", "temporaries")
"""From the ground up: what stays first, what comes and goes on top of it."""
_WIDE, _HIGH = 60_000, 2_000
"""Units of the picture, whole ones: a fifth of a pixel high on a screen, about a pixel wide with a hundredth shown."""


def stacked(timeline: Timeline) -> Timeline:
    """With the roles in the order they are stacked in."""
    order = sorted(range(len(timeline.roles)), key=lambda index: _height(timeline.roles[index]))
    moments = tuple(
        moment._replace(role_bytes=tuple(moment.role_bytes[index] for index in order)) for moment in timeline.moments
    )
    return replace(timeline, roles=tuple(timeline.roles[index] for index in order), moments=moments)


def _height(role: str) -> int:
    return STACK.index(role) if role in STACK else len(STACK)


def swatch(role: str) -> Markup:
    return tag("i", class_="swatch", style=f"background:{colour(role)}")


def colour(role: str) -> str:
    return f"var(--{role})" if role in STACK else "var(--faint)"


def chart(figures: Figures, timeline: Timeline) -> Markup:
    top_bytes, unit_bytes, ticks = _scale(figures, timeline.moments)
    unit = {GIB: "GiB", MIB: "MiB", KIB: "KiB"}.get(unit_bytes, "B")
    axis = [tag("span", f"{tick / unit_bytes:g}", style=f"top:{100 - 100 * tick / top_bytes:.2f}%") for tick in ticks]
    inner = (
        _strip("steps", steps(timeline.bands), timeline.events),
        _strip("phases", timeline.bands, timeline.events),
        tag("div", _svg(figures, timeline, top_bytes, ticks), _peak_mark(timeline, top_bytes), class_="plot"),
    )
    window = tag(
        "div",
        tag("div", *inner, class_="inner"),
        _capacity_label(figures, top_bytes),
        tag("div", class_="cursor"),
        class_="window",
        tabindex="0",
        role="img",
        aria_label=f"Memory over the run; the peak is {gib(figures.allocated_bytes)}",
    )
    order = "events in order: operations, allocations and releases; not to scale with time"
    across = tag("div", *(tag("span", text) for text in ("event 0", order, f"{timeline.events:,}")), class_="across")
    up = tag("div", tag("em", f"{unit} on one GPU"), *axis, class_="axis")
    frame = tag("div", up, window, across, _phase_key(timeline), class_="frame")
    return panel("Memory over the run", _zoom(timeline), tag("div", frame, _readout(timeline), class_="chart"))


PHASES: Mapping[str, str] = {
    "load": "L loading",
    "generate": "G generation",
    "score": "S scoring",
    "forward": "F forward",
    "backward": "B backward",
    "clip": "C gradient clipping",
    "optimizer": "O optimizer",
    "other": "– in between",
}
"""In the strip over the picture: where a phase is too narrow for its name, its letter stands there."""


def _phase_key(timeline: Timeline) -> Markup:
    drawn = {band.phase for band in timeline.bands}
    key = [tag("span", meaning) for phase, meaning in PHASES.items() if phase in drawn]
    if any(not band.phase for band in steps(timeline.bands)):
        key.append(tag("span", "steps are counted from 0: step 0 is the first optimizer step"))
    return tag("div", *key, class_="key phase-key")


def _scale(figures: Figures, moments: Sequence[Moment]) -> tuple[int, int, list[int]]:
    """The highest byte drawn, the unit, and the ticks: 1, 2 or 5 of a power of ten, four to nine of them.

    The card's end is drawn where that leaves the run at least half of the height; else its label says where it is.
    """
    most_bytes = max([figures.reserved_bytes, 1, *(moment.reserved_bytes for moment in moments)])
    if figures.capacity_bytes is not None and figures.capacity_bytes <= 2 * most_bytes:
        most_bytes = max(most_bytes, figures.capacity_bytes)
    unit_bytes = next((unit for unit in (GIB, MIB, KIB) if most_bytes >= unit), 1)
    sizes = (digit * 10**power for power in range(-1, 12) for digit in (1, 2, 5))
    step_bytes = next(int(size * unit_bytes) for size in sizes if size * unit_bytes * 8 >= most_bytes) or 1
    top_bytes = most_bytes * 107 // 100 + 1
    return top_bytes, unit_bytes, list(range(0, top_bytes, step_bytes))


def _strip(name: str, bands: Iterable[Band], events: int) -> Markup:
    spans = []
    for band in bands:
        label = "after the last step" if band.phase == AFTER else band.phase or f"step {band.step}"
        short = PHASES[band.phase][0] if name == "phases" and band.phase in PHASES else str(band.step)
        if name == "steps" and band.phase:
            short = ""
        place = f"left:{100 * band.begin / events:.4f}%;width:{100 * (band.end - band.begin) / events:.4f}%"
        title = when(band.phase, band.step) if band.phase not in ("", AFTER) else label
        inside = (tag("b", label), tag("i", short, aria_hidden="true"))
        spans.append(tag("span", *inside, class_=label.partition(" ")[0], style=place, title=title))
    return tag("div", *spans, class_=f"strip {name}")


def _svg(figures: Figures, timeline: Timeline, top_bytes: int, ticks: list[int]) -> Markup:
    moments, roles = timeline.moments, timeline.roles

    def y(nbytes: int) -> int:
        return round(_HIGH - _HIGH * nbytes / top_bytes)

    def x(event: int) -> int:
        return round(_WIDE * event / timeline.events)

    shapes = []
    for band in steps(timeline.bands)[1::2]:
        place = {"x": str(x(band.begin)), "y": "0", "width": str(x(band.end - band.begin)), "height": str(_HIGH)}
        shapes.append(tag("rect", **place, fill="var(--band)"))
    shapes += [_across(y(tick), "grid") for tick in ticks]
    events = [x(moment.event) for moment in moments]
    sums = [list(accumulate(moment.role_bytes)) for moment in moments]
    # Each sum covers the ones below it, so an area needs its upper edge only.
    for index in reversed(range(len(roles))):
        edge = _edge(events, [y(held[index]) for held in sums])
        if any(moment.role_bytes[index] for moment in moments):
            paint, area = colour(roles[index]), Markup(f"M0,{_HIGH}{edge}H{_WIDE}V{_HIGH}Z")
            shapes.append(tag("path", d=area, fill=paint, stroke=paint, class_="area"))
    edge = _edge(events, [y(moment.reserved_bytes) for moment in moments])
    shapes.append(tag("path", d=Markup(f"M0,{_HIGH}{edge}H{_WIDE}"), class_="reserved"))
    if figures.capacity_bytes is not None and figures.capacity_bytes < top_bytes:
        shapes.append(_across(y(figures.capacity_bytes), "capacity"))
    return tag("svg", *shapes, viewBox=f"0 0 {_WIDE} {_HIGH}", preserveAspectRatio="none", aria_hidden="true")


def _across(y: int, style: str) -> Markup:
    return tag("line", x1="0", x2=str(_WIDE), y1=str(y), y2=str(y), class_=style)


def _edge(xs: Sequence[int], ys: Sequence[int]) -> str:
    """Memory stays as it is between events, so the edge has steps, each told from the one before; what did not change
    needs none."""
    at, level = 0, _HIGH
    path = []
    for x, y in zip(xs, ys, strict=True):
        if y != level:
            path.append(f"h{x - at}v{y - level}")
            at, level = x, y
    return "".join(path)


def _peak_mark(timeline: Timeline, top_bytes: int) -> Markup:
    if not timeline.moments:
        return Markup()
    peak = timeline.moments[timeline.peak()]
    left, height = 100 * peak.event / timeline.events, 100 - 100 * peak.allocated_bytes / top_bytes
    side = f"right:{100 - left:.3f}%;margin-right:10px" if left > 50 else f"left:{left:.3f}%;margin-left:10px"
    # Below the dot, where no line passes; above it when there is no room below.
    rise = "margin-top:2px" if height < 90 else "margin-top:-26px"
    return joined(
        tag("div", class_="mark", style=f"left:{left:.3f}%;top:{height:.3f}%"),
        tag("div", f"peak {gib(peak.allocated_bytes)}", class_="label", style=f"{side};top:{height:.3f}%;{rise}"),
    )


def _capacity_label(figures: Figures, top_bytes: int) -> Markup:
    if figures.capacity_bytes is None:
        return Markup()
    label = f"{card_name(figures.gpu) if figures.gpu else 'card'}: {gib(figures.capacity_bytes)}"
    if figures.capacity_bytes >= top_bytes:
        mark = tag("div", f"↑ {label}", class_="label limit beyond", style="top:0")
    else:
        height = 100 - 100 * figures.capacity_bytes / top_bytes
        mark = tag("div", label, class_="label limit", style=f"top:{height:.2f}%")
    return tag("div", mark, class_="over")


def _zoom(timeline: Timeline) -> Markup:
    wholes = [band for band in steps(timeline.bands) if band.phase != AFTER]
    if len(wholes) < 2:
        return Markup()
    choices = [("Whole run", 0, timeline.events)]
    choices += [(f"Step {band.step}" if not band.phase else "Loading", band.begin, band.end) for band in wholes]
    buttons = (
        tag("button", name, type="button", data_begin=str(begin), data_end=str(end), aria_pressed=pressed)
        for (name, begin, end), pressed in zip(choices, ["true", *["false"] * len(wholes)], strict=True)
    )
    return tag("div", *buttons, class_="zoom")


def _readout(timeline: Timeline) -> Markup:
    peak = timeline.moments[timeline.peak()] if timeline.moments else Moment(0, (0,) * len(timeline.roles), 0)
    held = dict(zip(timeline.roles, peak.role_bytes, strict=True))
    phase = next((when(band.phase, band.step) for band in timeline.bands if band.begin <= peak.event < band.end), "")
    figures = [
        (f"role{index}", (swatch(role), words(role)), held[role], None if held[role] else "none")
        for index, role in reversed(list(enumerate(timeline.roles)))
    ]
    figures.append(("allocated", (Markup(), "allocated"), peak.allocated_bytes, "sum"))
    figures.append(("reserved", (tag("i", class_="swatch stroke"), "reserved"), peak.reserved_bytes, "sum"))
    rows = (
        tag("tr", tag("td", *label), tag("td", gib(nbytes), class_="number", data_show=name), class_=style)
        for name, label, nbytes, style in figures
    )
    code = {"op": peak.op, "source": short_source(peak.source), "module": peak.module}
    where = [tag("div", phase, data_show="phase")]
    where += [tag("div", text, data_show=name, class_="mono") for name, text in code.items()]
    title = tag("h3", "At the peak", data_show="title")
    return tag("aside", title, tag("div", *where, class_="where"), tag("table", *rows), class_="readout")


def chart_data(timeline: Timeline) -> Markup:
    """What the pointer can ask for, in columns of differences: most are 0, and the page stays small.

    Sizes are in the largest unit that divides them all: PyTorch rounds every block to 512 bytes.
    """
    moments = timeline.moments
    sizes = [(*moment.role_bytes, moment.reserved_bytes) for moment in moments]
    unit_bytes = gcd(*(nbytes for row in sizes for nbytes in row)) or 1
    text: dict[str, int] = {}
    columns = {
        "op": [moment.op for moment in moments],
        "module": [moment.module for moment in moments],
        "source": [short_source(moment.source) for moment in moments],
    }
    data: dict[str, Any] = {
        "events": timeline.events,
        "peak": timeline.peak(),
        "bands": [[*band, when(band.phase, band.step)] for band in timeline.bands],
        "event": _differences([moment.event for moment in moments]),
        "unit": unit_bytes,
        "roles": [_differences([row[index] // unit_bytes for row in sizes]) for index in range(len(timeline.roles))],
        "reserved": _differences([row[-1] // unit_bytes for row in sizes]),
        **{name: [text.setdefault(shown(cell), len(text)) for cell in cells] for name, cells in columns.items()},
        "text": list(text),
    }
    return json_script("data", data)


def _differences(values: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise([0, *values])]
