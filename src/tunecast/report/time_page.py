"""How long a job takes, for the page: the same figures as `report/time.py`, as one panel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.report.markup import Markup, tag
from tunecast.report.time import PHASES, SHOWN_FROM_S, duration, figure_rows, sentences
from tunecast.units import percent


def time_panel(
    time: Mapping[str, Any] | None, utilization: Mapping[str, Any] | None, energy: Mapping[str, Any] | None
) -> Markup:
    """Nothing where no time was computed."""
    if time is None:
        return Markup()
    figures = (
        tag("div", tag("dt", name.capitalize()), tag("dd", value, tag("small", note), class_="number"))
        for name, value, note in figure_rows(time)
    )
    told = (tag("p", sentence, class_="muted") for sentence in sentences(time, utilization, energy))
    return tag("section", tag("h2", "Time"), tag("dl", *figures, class_="cards"), _phases(time), *told, class_="panel")


def _phases(time: Mapping[str, Any]) -> Markup:
    phases: Mapping[str, float] = time.get("phases_s") or {}
    kept = {name: spent for name, spent in phases.items() if spent >= SHOWN_FROM_S}
    if len(kept) < 2:
        return Markup()
    total, most = sum(kept.values()), max(kept.values())
    rows = (
        tag(
            "tr",
            tag("td", PHASES.get(name, name)),
            tag("td", tag("i", style=f"width:{100 * spent / most:.2f}%;background:var(--faint)"), class_="bar"),
            tag("td", percent(spent / total, 1), class_="number muted"),
            tag("td", duration(spent), class_="number"),
        )
        for name, spent in kept.items()
    )
    return tag("table", *rows, class_="bars")
