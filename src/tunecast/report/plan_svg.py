"""The picture of a plan's page: cost against time with the front, as SVG in percent, so that it fits any width.

Circles stay round and letters stay legible on a phone, since nothing is scaled; axis labels are HTML beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tunecast.plan.choice import Choice, Plan
from tunecast.report.markup import Markup, lines, tag
from tunecast.report.plan_plot import Axis, Point, axes, points
from tunecast.report.plan_words import cost_told, offer_told, picked_as, room, time_told

_WIDE, _HIGH = 1000, 420
"""Of the plot on a wide screen, in pixels: what labels are kept apart by."""
_LETTER, _LINE = 6.4, 16
"""Pixels of a label's letter, and of its line."""


class Place(NamedTuple):
    """In percent of the plot, from its upper left corner."""

    x: float
    y: float


class Drawn(NamedTuple):
    point: Point
    at: Place
    low: Place
    """At the low ends of time and cost: left and below of `at`."""
    high: Place


def pareto_plot(plan: Plan) -> Markup:
    """Nothing where there are no two points."""
    found = points(plan)
    if len(found) < 2:
        return Markup()
    across, up = axes(plan, found, ranges=True)
    unit = 1 / plan.money.rate.usd_per_eur if plan.money.eur else 1.0
    drawn = [_drawn(point, across, up, unit) for point in found]
    front = [each for each in drawn if each.point.mark]
    shapes = [
        *(tag("line", x1=_pc(across.place(t.value)), x2=_pc(across.place(t.value)), y1="0", y2="100%", class_="grid")
          for t in across.ticks),
        *(tag("line", x1="0", x2="100%", y1=_pc(1 - up.place(t.value)), y2=_pc(1 - up.place(t.value)), class_="grid")
          for t in up.ticks),
        *_steps(front),
        *(_dot(plan, each) for each in drawn if not each.point.mark),
        *(_dot(plan, each) for each in front),
        *_labels(plan, drawn),
    ]  # fmt: skip
    rows = (tag("span", t.label, style=f"top:{100 - 100 * up.place(t.value):.2f}%") for t in up.ticks)
    feet = (tag("span", t.label, style=f"left:{100 * across.place(t.value):.2f}%") for t in across.ticks)
    money = "EUR" if plan.money.eur else "USD"
    others = len(drawn) - len(front)
    return tag(
        "div",
        tag(
            "div",
            tag("div", *rows, class_="axis"),
            tag("div", tag("svg", *shapes, role="img", aria_label=_spoken(plan, front)), class_="plot"),
            tag("div", *feet, class_="feet"),
            class_="frame pareto",
        ),
        tag(
            "div",
            tag("span", tag("i", class_="swatch front"), "front: no other is both cheaper and faster"),
            tag("span", tag("i", class_="swatch other"), f"the best of other hardware that was predicted ({others})")
            if others
            else "",
            tag("span", tag("i", class_="swatch range"), "range of time and cost"),
            tag("span", f"cost in {money}, up, against time; both axes logarithmic"),
            class_="key",
        ),
    )


def _drawn(point: Point, across: Axis, up: Axis, unit: float) -> Drawn:
    choice = point.choice
    low_s, high_s = choice.total_range_s
    low_usd, high_usd = choice.usd_range
    return Drawn(
        point,
        _place(across, up, choice.total_s, unit * choice.total_usd),
        _place(across, up, low_s, unit * low_usd),
        _place(across, up, high_s, unit * high_usd),
    )


def _place(across: Axis, up: Axis, seconds: float, amount: float) -> Place:
    return Place(100 * across.place(seconds), 100 - 100 * up.place(amount))


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
    """With what the pointer tells, and of the front its ranges."""
    choice, at = each.point.choice, each.at
    named = picked_as(plan, choice)
    style = "pick" if named else "front" if each.point.mark else "other"
    ranges = (
        (_line(each.low.x, at.y, each.high.x, at.y, "range"), _line(at.x, each.low.y, at.x, each.high.y, "range"))
        if each.point.mark or named
        else ()
    )
    size = {"pick": "7", "front": "5", "other": "3.5"}[style]
    circle = tag("circle", cx=f"{at.x:.2f}%", cy=f"{at.y:.2f}%", r=size)
    return tag("g", tag("title", *lines(told(plan, choice))), *ranges, circle, class_=f"dot {style}")


def told(plan: Plan, choice: Choice) -> list[str]:
    named = picked_as(plan, choice)
    held = room(choice)
    return [
        f"{choice.hardware}{f' ({named})' if named else ''}",
        offer_told(choice.machine.offer),
        time_told(choice),
        cost_told(choice, plan.money),
        f"{held.used} of a card",
    ]


_ASIDE = (
    ("start", 12, -9),
    ("end", -12, -9),
    ("start", 12, 19),
    ("end", -12, 19),
    ("middle", 0, -14),
    ("middle", 0, 24),
)
"""Where a label may stand, from its point on: (anchor, pixels to the right, pixels down)."""


def _labels(plan: Plan, drawn: Sequence[Drawn]) -> Iterator[Markup]:
    """Picks by what they are, then the rest of the front by its hardware, where there is room."""
    named = [each for each in drawn if picked_as(plan, each.point.choice)]
    front = [each for each in drawn if each.point.mark and each not in named]
    taken = [_around(each) for each in (*named, *front)]
    for each in named:
        choice = each.point.choice
        yield from _label(each, (picked_as(plan, choice), f": {choice.hardware}"), "named", taken)
    taken += [_around(each) for each in drawn]
    for each in front:
        yield from _label(each, (each.point.choice.hardware, ""), "minor", taken)


Box = tuple[float, float, float, float]
"""Left, top, width and height, in pixels."""


def _around(each: Drawn) -> Box:
    return (each.at.x * _WIDE / 100 - 8, each.at.y * _HIGH / 100 - 8, 16, 16)


def _label(each: Drawn, label: tuple[str, str], style: str, taken: list[Box]) -> Iterator[Markup]:
    """At the first place where it covers nothing; nowhere where there is none: the titles have all.

    Its second part is left out on a small screen.
    """
    width = sum(map(len, label)) * _LETTER
    for anchor, dx, dy in _ASIDE:
        left = each.at.x * _WIDE / 100 + dx - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
        box = (left, each.at.y * _HIGH / 100 + dy - 12, width, _LINE)
        inside = left >= 0 and left + width <= _WIDE and 0 <= box[1] <= _HIGH - _LINE
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            at = {"x": f"{each.at.x:.2f}%", "y": f"{each.at.y:.2f}%", "dx": str(dx), "dy": str(dy)}
            yield tag("text", label[0], tag("tspan", label[1], class_="long"), **at, text_anchor=anchor, class_=style)
            return


def _overlap(one: Box, other: Box) -> bool:
    return (
        one[0] < other[0] + other[2]
        and other[0] < one[0] + one[2]
        and one[1] < other[1] + other[3]
        and other[1] < one[1] + one[3]
    )


def _spoken(plan: Plan, front: Sequence[Drawn]) -> str:
    """For who cannot see it."""
    each = "; ".join(
        f"{one.point.choice.hardware}: {time_told(one.point.choice)}, {cost_told(one.point.choice, plan.money)}"
        for one in front
    )
    return f"Cost against time. The front, the cheapest first: {each}"
