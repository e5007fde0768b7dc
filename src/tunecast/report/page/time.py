"""How long a job takes, for the page: the same figures as `report/run/time.py`, with two bars of where time goes."""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.prediction.time.reasons import NAMES
from tunecast.prediction.values import Energy, Time, Utilization
from tunecast.report.draw.text import words
from tunecast.report.page.document import panel
from tunecast.report.page.markup import Markup, breakable, joined, tag
from tunecast.report.page.verdict import number_cards
from tunecast.report.run.time import PHASES, TITLE, duration, figure_rows, line_rows, sentences
from tunecast.units import percent

SHOWN_FROM = 0.001
"""Of the whole: smaller parts are one, together."""
REST = "the rest"
COLOURS: Mapping[str, str] = {
    **{"matrix_products": "#2f6690", "attention": "#81c3d7", "memory_bound": "#3a9679", "recomputation": "#16425b"},
    **{"optimizer": "#c89b3c", "launch": "#d1603d", "communication": "#8e4162", "waiting": "#b08ea2"},
    **{"offload": "#7d5ba6", "nvme": "#55428b"},
    **{"training": "#2f6690", "evaluation": "#81c3d7", "checkpoints": "#c89b3c", "final_save": "#8d6e2c"},
    **{"provisioning": "#8e4162", "image": "#b08ea2", "download": "#d1603d", "start": "#e0a58f", "load": "#7d5ba6"},
    **{"preparation": "#3a9679", "first_step": "#16425b", "new_lengths": "#55428b"},
}
"""By the part of a step or of a job; none is a colour that memory has on the same page."""


def time_panel(
    time: Time | None,
    utilization: Utilization | None,
    energy: Energy | None,
    *,
    fits: bool = True,
) -> Markup:
    """Nothing where no time was computed."""
    if time is None:
        return Markup()
    figures = [(name.capitalize(), value, note) for name, value, note in figure_rows(time)]
    told = tag("ul", *(tag("li", sentence) for sentence in sentences(time, utilization, energy)), class_="muted")
    return panel(
        TITLE if fits else f"{TITLE}, if it had the memory",
        number_cards(figures),
        stacked_time("Where the time of a step goes", time.breakdown_s, NAMES),
        stacked_time("Where the time of the job goes", time.phases_s or {}, PHASES),
        line_table(time),
        told,
        style="time",
    )


def line_table(time: Time) -> Markup:
    """The lines of a script that take the most time of a step."""
    rows = [
        tag("tr", tag("td", spent), tag("td", share), tag("td", breakable(line), class_="mono"))
        for spent, share, line in line_rows(time)
    ]
    if not rows:
        return Markup()
    head = tag("tr", *(tag("th", name) for name in ("GPU time per step", "share", "line of code, with its backward")))
    return joined(tag("h3", "Lines of code that take the most time"), tag("table", head, *rows))


def stacked_time(title: str, parts_s: Mapping[str, float], names: Mapping[str, str]) -> Markup:
    """One bar; nothing where it would have but one part."""
    total_s = sum(parts_s.values())
    large = {name: spent for name, spent in parts_s.items() if spent and spent >= SHOWN_FROM * total_s}
    if len(large) < 2:
        return Markup()
    rest_s = total_s - sum(large.values())
    parts = large | ({REST: rest_s} if rest_s > SHOWN_FROM * total_s else {})
    bars, key = [], []
    for name, spent in parts.items():
        label, colour = names.get(name) or words(name), COLOURS.get(name, "var(--faint)")
        told = f"{label} {duration(spent)}, {percent(spent / total_s, 1)}"
        bars.append(tag("i", style=f"width:{100 * spent / total_s:.3f}%;background:{colour}", title=told))
        key.append(tag("span", tag("i", class_="swatch", style=f"background:{colour}"), told))
    return joined(
        tag("h3", f"{title}: {duration(total_s)}"),
        tag("div", *bars, class_="track", role="img", aria_label=title),
        tag("div", *key, class_="key"),
    )
