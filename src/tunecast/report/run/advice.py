"""What to change first: the changes that were tried, the best of each kind, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunecast.advise.changes import Change
from tunecast.prediction.verdict import Verdict
from tunecast.report.draw.columns import columns
from tunecast.report.draw.figures import shown
from tunecast.report.draw.text import DEFAULT, Terminal, wrapped
from tunecast.report.run.wording import FIELDS, Wording
from tunecast.units import gib

TITLE, FREES, FASTER = "What to change first", "What would free memory", "What would make it faster"
EFFECTS: Mapping[Verdict, str] = {
    "fits": "fits then",
    "may not fit": "may fit then",
    "does not fit": "not enough alone",
}


def advice_text(
    changes: Sequence[Change],
    terminal: Terminal = DEFAULT,
    *,
    verdict: Verdict,
    fit: str = "",
    wording: Wording = FIELDS,
) -> str:
    """`--gradient-checkpointing   frees 12.30 GiB, fits then`. '' where nothing helps and nothing is to be asked.

    `fit`: the command that searches for changes together.
    """
    rows = [(wording.change(change.overrides), effect_words(change, verdict)) for change in changes]
    lines = columns(rows, left=(0, 1))
    if lines and max(map(len, lines)) > terminal.width:
        lines = [line for what, effect in rows for line in (f"  {what}", f"      {effect}")]
    title = TITLE if verdict != "fits" else FREES if rows else FASTER
    if fit and title == FASTER:
        lines = [f"  {shown(fit)}"]
    elif fit:
        lines += [*wrapped([_next(changes, verdict)], "  ", terminal), f"    {shown(fit)}"]
    return terminal.plain("\n".join([terminal.paint(title, "bold"), *lines])) if lines else ""


def _next(changes: Sequence[Change], verdict: Verdict) -> str:
    if verdict == "fits":
        return "for what makes it faster:"
    if any(change.verdict == "fits" for change in changes):
        return "for which harms training least, and what each costs in time:"
    alone = "no single change is enough; " if changes else ""
    return f"{alone}for the smallest combination that fits:"


def effect_words(change: Change, verdict: Verdict) -> str:
    frees = f"frees {gib(change.saves_bytes)}" if change.saves_bytes > 0 else "fragments memory less"
    return frees if verdict == "fits" else f"{frees}, {EFFECTS[change.verdict]}"
