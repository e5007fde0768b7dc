"""The picture of a plan's page: cost against time with the front, as SVG in percent, so that it fits any width.

Circles stay round and letters stay legible on a phone, since nothing is scaled; axis labels are HTML beside it. Names
beside the dots are placed three times, for three ranges of widths, and shown by the page's style; the list below the
picture has them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tunecast.planning.choice import Choice, Plan
from tunecast.records import NamedTuple
from tunecast.report.page.markup import Markup, lines, tag
from tunecast.report.plan.plot import Axis, PlotPoint, axes, points
from tunecast.report.plan.words import cost_and_range, marks, offer_name, picked_as, room, time_and_range

_LETTER, _LINE = 6.6, 16
"""Pixels of a label's letter, and of its line."""
_RADIUS = {"pick": 8, "front": 7, "other": 3.5}


class Screen(NamedTuple):
    """How wide the plot is, in pixels, on the screens a style is for: at least, in between, at most; and how high."""

    style: str
    widths: tuple[int, ...]
    height: int


SCREENS = (
    Screen("on-wide", (850, 950, 1060), 420),
    Screen("on-middle", (540, 690, 850), 420),
    Screen("on-narrow", (230, 310, 420, 540), 320),
)
"""As `page/plan.css` has them: from 1,000 pixels on, from 640 on, below."""


class PlotPlace(NamedTuple):
    """In percent of the plot, from its upper left corner."""

    x: float
    y: float


class Drawn(NamedTuple):
    point: PlotPoint
    at: PlotPlace
    low: PlotPlace
    """At the low ends of time and cost: left and below of `at`."""
    high: PlotPlace


def pareto_plot(plan: Plan) -> Markup:
    """Nothing where there are no two points."""
    found = points(plan)
    if len(found) < 2:
        return Markup()
    across, up = axes(plan, found, ranges=True)
    unit = 1 / plan.money.rate.usd_per_eur if plan.money.eur else 1.0
    drawn = [_drawn(point, across, up, unit) for point in found]
    front = [each for each in drawn if each.point.mark]
    others = [each for each in drawn if not each.point.mark]
    shapes = [
        *(tag("line", x1=_pc(across.place(t.value)), x2=_pc(across.place(t.value)), y1="0", y2="100%", class_="grid")
          for t in across.ticks),
        *(tag("line", x1="0", x2="100%", y1=_pc(1 - up.place(t.value)), y2=_pc(1 - up.place(t.value)), class_="grid")
          for t in up.ticks),
        *_steps(front),
        *(_dot(plan, each) for each in others),
        *(_dot(plan, each) for each in sorted(front, key=lambda each: bool(picked_as(plan, each.point.choice)))),
        *(tag("g", *_labels(plan, drawn, screen), class_=f"labels {screen.style}", aria_hidden="true")
          for screen in SCREENS),
    ]  # fmt: skip
    rows = (tag("span", t.label, style=f"top:{100 - 100 * up.place(t.value):.2f}%") for t in up.ticks)
    feet = (tag("span", t.label, style=f"left:{100 * across.place(t.value):.2f}%") for t in across.ticks)
    money = "EUR" if plan.money.eur else "USD"
    picture = tag("svg", *shapes, role="group", aria_label="Cost against time")
    frame = (
        tag("div", tag("em", f"cost in {money}, logarithmic"), *rows, class_="axis"),
        tag("div", picture, tag("div", class_="tip", hidden="", role="status"), class_="plot"),
        tag("div", *feet, tag("em", "time from the order to the saved model, logarithmic"), class_="feet"),
    )
    letters = tag("ol", *(_entry(plan, each) for each in front), class_="letters")
    return tag("div", tag("div", *frame, class_="frame pareto"), _key(others), letters)


def _key(others: Sequence[Drawn]) -> Markup:
    rest = f"the best of other hardware that was predicted ({len(others)})"
    return tag(
        "div",
        tag("span", tag("i", class_="swatch front"), "front: no other is both cheaper and faster"),
        tag("span", tag("i", class_="swatch other"), rest) if others else "",
        tag("span", tag("i", class_="swatch range"), "80 % range of time and cost, of the picks"),
        class_="key",
    )


def _entry(plan: Plan, each: Drawn) -> Markup:
    """`a cheapest: 2 x b200-sxm-180gb, 1 h 16 min (60 to 108 min), $5.87 (4.55 to 8.39)`."""
    choice = each.point.choice
    named = marks(plan, choice)
    return tag(
        "li",
        tag("i", each.point.mark, class_="letter"),
        tag("b", named + ": ") if named else "",
        f"{choice.hardware}, {offer_name(choice.fleet.offer)}: ",
        tag("span", f"{time_and_range(choice)}, {cost_and_range(choice, plan.money)}", class_="muted"),
    )


def _drawn(point: PlotPoint, across: Axis, up: Axis, unit: float) -> Drawn:
    choice = point.choice
    ends = zip(choice.total_range_s, choice.usd_range, strict=True)
    places = (
        PlotPlace(100 * across.place(seconds), 100 - 100 * up.place(unit * usd))
        for seconds, usd in ((choice.total_s, choice.total_usd), *ends)
    )
    return Drawn(point, *places)


def _pc(fraction: float) -> str:
    return f"{100 * fraction:.2f}%"


def _steps(front: Sequence[Drawn]) -> Iterator[Markup]:
    """From each point straight to the time of the next faster one, then up to its cost: that is where nothing is."""
    by_time = sorted((each.at for each in front), reverse=True)
    for slow, fast in pairwise(by_time):
        yield _line(slow.x, slow.y, slow.x, fast.y, "step")
        yield _line(slow.x, fast.y, fast.x, fast.y, "step")


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    return tag("line", **{name: f"{value:.2f}%" for name, value in ends.items()}, class_=style)


def _dot(plan: Plan, each: Drawn) -> Markup:
    """With what the pointer tells, its ranges, which only picks show unasked, and the letter of the front."""
    choice, at = each.point.choice, each.at
    style = _style(plan, each)
    place = {"x": f"{at.x:.2f}%", "y": f"{at.y:.2f}%"}
    letter = tag("text", each.point.mark, **place, dy="3.5", text_anchor="middle", class_="mark-letter")
    return tag(
        "g",
        tag("title", *lines(_tooltip(plan, choice))),
        _line(each.low.x, at.y, each.high.x, at.y, "range"),
        _line(at.x, each.low.y, at.x, each.high.y, "range"),
        tag("circle", cx=place["x"], cy=place["y"], r=f"{_RADIUS[style]:g}"),
        letter if each.point.mark else Markup(),
        class_=f"dot {style}{'' if choice.fits_surely else ' unsure'}",
        tabindex="0",
        role="img",
    )


def _style(plan: Plan, each: Drawn) -> str:
    return "pick" if picked_as(plan, each.point.choice) else "front" if each.point.mark else "other"


def _tooltip(plan: Plan, choice: Choice) -> list[str]:
    named = marks(plan, choice)
    held = room(choice)
    return [
        f"{choice.hardware}{f' ({named})' if named else ''}",
        offer_name(choice.fleet.offer),
        time_and_range(choice),
        cost_and_range(choice, plan.money),
        f"{held.used} per card",
    ]


_ASIDE = (
    ("start", 13, -9),
    ("end", -13, -9),
    ("start", 13, 19),
    ("end", -13, 19),
    ("middle", 0, -15),
    ("middle", 0, 25),
)
"""Where a label may stand, from its point on: (anchor, pixels to the right, pixels down)."""


def _labels(plan: Plan, drawn: Sequence[Drawn], screen: Screen) -> Iterator[Markup]:
    """Picks by what they are, then the rest of the front by its hardware, where there is room. Every point has its
    letter in any case."""
    named = [each for each in drawn if picked_as(plan, each.point.choice)]
    front = [each for each in drawn if each.point.mark and each not in named]
    taken = [[_around(plan, each, width, screen.height) for each in drawn] for width in screen.widths]
    for each in named:
        names, hardware = picked_as(plan, each.point.choice), each.point.choice.hardware
        for label in (f"{names}: {hardware}", names):
            if found := _label(each, label, "named", taken, screen):
                yield found
                break
    for each in front:
        yield _label(each, f"{each.point.mark}: {each.point.choice.hardware}", "minor", taken, screen)


class Box(NamedTuple):
    """In pixels."""

    left: float
    top: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.left < other.left + other.width
            and other.left < self.left + self.width
            and self.top < other.top + other.height
            and other.top < self.top + self.height
        )


def _around(plan: Plan, each: Drawn, width: int, height: int) -> Box:
    size = _RADIUS[_style(plan, each)] + 1
    return Box(each.at.x * width / 100 - size, each.at.y * height / 100 - size, 2 * size, 2 * size)


def _label(each: Drawn, label: str, style: str, taken: list[list[Box]], screen: Screen) -> Markup:
    """At the first place where it covers nothing, whatever the screen's width; nowhere where there is none."""
    long = len(label) * _LETTER
    for anchor, dx, dy in _ASIDE:
        boxes = [
            Box(
                each.at.x * width / 100 + dx - long * {"start": 0, "middle": 0.5, "end": 1}[anchor],
                each.at.y * screen.height / 100 + dy - 12,
                long,
                _LINE,
            )
            for width in screen.widths
        ]
        if all(
            box.left >= 0
            and box.left + long <= width
            and 0 <= box.top <= screen.height - _LINE
            and not any(box.overlaps(other) for other in others)
            for width, box, others in zip(screen.widths, boxes, taken, strict=True)
        ):
            for box, others in zip(boxes, taken, strict=True):
                others.append(box)
            at = {"x": f"{each.at.x:.2f}%", "y": f"{each.at.y:.2f}%", "dx": str(dx), "dy": str(dy)}
            return tag("text", label, **at, text_anchor=anchor, class_=style)
    return Markup()
