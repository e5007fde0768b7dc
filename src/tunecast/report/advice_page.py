"""What to do next, for the page: the changes that help most, the command that finds more, and what was not given."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.predict.changes import Change
from tunecast.predict.room import Verdict
from tunecast.report.advice import change_in_yaml
from tunecast.report.document import panel
from tunecast.report.markup import Markup, copyable, tag
from tunecast.units import gib


def advice_panel(changes: Sequence[Change], command: str, verdict: Verdict | None) -> Markup:
    """`command`: what finds the smallest set of changes after which the job fits; '' where that is not asked for."""
    rows = [_row(change, verdict) for change in changes]
    parts = [tag("table", tag("tbody", *rows), class_="blocks changes")] if rows else []
    if command and verdict != "fits":
        parts += [
            tag("p", "The smallest set of changes that fits, each with what it costs in time:", class_="muted"),
            copyable(command),
        ]
    title = "What would free the most memory" if verdict == "fits" else "What to change first"
    return panel(title, *parts)


def _row(change: Change, verdict: Verdict | None) -> Markup:
    frees = f"frees {gib(change.saves_bytes)}" if change.saves_bytes > 0 else "fragments memory less"
    fits = tag("td")
    if verdict == "does not fit":
        style = "pill good" if change.fits else "pill plain"
        fits = tag("td", tag("span", "fits then" if change.fits else "not enough alone", class_=style))
    return tag("tr", tag("td", change_in_yaml(change), class_="mono"), tag("td", frees, class_="number"), fits)
