"""What to change first: the changes that were tried, the best of each kind, for the terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from tunecast.advise.changes import Change
from tunecast.job.flags import job_flags
from tunecast.prediction.verdict import Verdict
from tunecast.report.draw.columns import columns
from tunecast.report.draw.figures import shown
from tunecast.report.draw.text import DEFAULT, Terminal, wrapped
from tunecast.units import gib

TITLE, FREES, FASTER = "What to change first", "What would free memory", "What would make it faster"
_FIELD = re.compile(r"\b([a-z]+\.[a-z_0-9]+)((?:: (?=[\w-]))?)")
"""A field of a section, with the colon before its value."""
ROOMY = 0.5
"""Of what PyTorch can use: nobody looks for more who needs less than this."""
EFFECTS: Mapping[Verdict, str] = {
    "fits": "fits then",
    "may not fit": "may fit then",
    "does not fit": "not enough alone",
}


def advice_text(
    changes: Sequence[Change], terminal: Terminal = DEFAULT, *, verdict: Verdict, fit: str = "", flags: bool = False
) -> str:
    """`--gradient-checkpointing   frees 12.30 GiB, fits then`. '' where nothing helps and nothing is to be asked.

    `fit`: the command that searches for changes together; `flags`: the job was given by flags, not by a file.
    """
    rows = [(change_words(change.overrides, flags), effect_words(change, verdict)) for change in changes]
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


def change_words(overrides: Mapping[str, object], flags: bool) -> str:
    """As it is typed, or written into the job's file."""
    return as_flags(overrides) if flags else in_yaml(overrides)


def in_yaml(overrides: Mapping[str, object]) -> str:
    return ", ".join(f"{shown(field)}: {value_in_yaml(value)}" for field, value in overrides.items())


def as_flags(overrides: Mapping[str, object]) -> str:
    """`--gradient-checkpointing --kernels liger`: what the command line takes for the same."""
    flags = {flag.field: flag for flag in job_flags()}
    words = []
    for field, value in overrides.items():
        if field not in flags:  # a whole section
            words.append(f"--set {field}=null")
            continue
        flag = flags[field].flag
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(f"{flag} {shlex.quote(text)}")
    return " ".join(words)


def with_flags(sentence: str) -> str:
    """`hardware.interconnect: nvlink4` is `--interconnect nvlink4` to somebody who types."""
    flags = {flag.field: flag.flag for flag in job_flags()}
    return _FIELD.sub(lambda found: f"{flags[found[1]]}{found[2] and ' '}" if found[1] in flags else found[0], sentence)


def value_in_yaml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return shown(f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value))
