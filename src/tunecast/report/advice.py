"""Which line of a job to attack first: the changes that were tried, the best of each kind, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunecast.predict.changes import Change
from tunecast.report.columns import columns
from tunecast.report.figures import shown
from tunecast.report.text import DEFAULT, Terminal
from tunecast.units import gib

TITLE = "Which line to attack first"
MOST = 4
WORTHWHILE_FRACTION = 0.01
"""Of what the job holds: a change that frees less is not worth a line, unless it makes the job fit."""


def best_of(changes: Iterable[Change], held_bytes: int, fitted: bool, most: int = MOST) -> list[Change]:
    """The first that matter of changes in the order of their worth, one of each group: the others are its rivals."""
    best: dict[str, Change] = {}
    for change in changes:
        if change.saves_bytes >= held_bytes * WORTHWHILE_FRACTION or (change.fits and not fitted):
            best.setdefault(change.group or next(iter(change.overrides)), change)
    return list(best.values())[:most]


def advice_text(changes: Sequence[Change], terminal: Terminal = DEFAULT, *, fitted: bool) -> str:
    """`gradient_checkpointing: true   frees 12.30 GiB, fits then`. '' where nothing helps."""
    if not changes:
        return ""
    rows = [(change_in_yaml(change), effect_words(change, fitted=fitted)) for change in changes]
    lines = columns(rows, left=(0, 1))
    if max(map(len, lines)) > terminal.width:
        lines = [line for what, effect in rows for line in (f"  {what}", f"      {effect}")]
    return terminal.plain("\n".join([terminal.paint(TITLE, "bold"), *lines]))


def change_in_yaml(change: Change) -> str:
    """As it is written into the job's file."""
    return ", ".join(f"{shown(field)}: {value_in_yaml(value)}" for field, value in change.overrides.items())


def effect_words(change: Change, *, fitted: bool) -> str:
    frees = f"frees {gib(change.saves_bytes)}" if change.saves_bytes > 0 else "cuts memory up better"
    if fitted:
        return frees
    return f"{frees}, {'fits then' if change.fits else 'not enough by itself'}"


def value_in_yaml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return shown(f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value))
