"""What to do next, for the page: the changes that help most, the command that finds more, and what was not given."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.advise.changes import Change
from tunecast.prediction.verdict import Verdict
from tunecast.report.page.document import panel
from tunecast.report.page.markup import Markup, copyable, tag
from tunecast.report.run.advice import FREES, TITLE, effect_words
from tunecast.report.run.unstated import TITLE as TAKEN
from tunecast.report.run.wording import Wording


def advice_panel(changes: Sequence[Change], command: str, verdict: Verdict | None, *, wording: Wording) -> Markup:
    """`command`: what finds the smallest set of changes after which the job fits; '' where it cannot be told."""
    rows = [_row(change, verdict, wording) for change in changes]
    parts = [tag("table", tag("tbody", *rows), class_="blocks changes")] if rows else []
    if command and verdict in ("may not fit", "does not fit"):
        parts += [
            tag("p", "The smallest combination that fits, and what it costs in time:", class_="muted"),
            copyable(command),
        ]
    return panel(FREES if verdict == "fits" else TITLE, *parts)


def _row(change: Change, verdict: Verdict | None, wording: Wording) -> Markup:
    frees, _, then = effect_words(change, verdict or "fits").partition(", ")
    style = "pill good" if change.verdict == "fits" else "pill plain"
    return tag(
        "tr",
        tag("td", wording.change(change.overrides), class_="mono"),
        tag("td", frees, class_="number"),
        tag("td", tag("span", then, class_=style) if then else Markup()),
    )


def taken_panel(lines: Sequence[str], cost: str) -> Markup:
    """What the job does not say, and what it costs; nothing where neither is known."""
    parts = [tag("ul", *[tag("li", line) for line in lines])] if lines else []
    parts += [tag("p", tag("b", "Cost: "), cost)] if cost else []
    return panel(TAKEN if lines else "Cost", *parts) if parts else Markup()
