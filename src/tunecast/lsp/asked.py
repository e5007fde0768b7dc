"""What an editor's settings and a comment in the file say of the card and the limits of a plan. The comment wins.

# tunecast: gpu=rtx-4090 gpus=2 within=6h eu budget=50
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.comment import LONGEST, NAMES, NO, FileComment, dollars
from tunecast.records import NamedTuple
from tunecast.units import duration_s, positive


class Asked(NamedTuple):
    gpu: str | None = None
    gpus: int | None = None
    within: str | None = None
    """Deadline of a plan, such as 6h."""
    eu: bool = False
    """Plans only with machines that stand in the EU for sure."""
    budget: float | None = None
    """US dollars, of a plan."""


class EditorSettings(NamedTuple):
    asked: Asked = Asked()
    enable: bool = True
    show_results: bool = True
    """Whether the server shows what a command prints; else its client does."""


NO_SETTINGS = EditorSettings()


def settings_of(given: object, before: EditorSettings = NO_SETTINGS) -> EditorSettings:
    """Of what a client sends: what is missing stays as it is, and what is no such value is left out."""
    if not isinstance(given, Mapping):
        return before
    inner = given.get("tunecast")
    told = inner if isinstance(inner, Mapping) else given
    asked = before.asked
    for name in NAMES:
        if name in told:
            asked = asked._replace(**{name: _value(name, told[name])})
    enable, shows = told.get("enable", before.enable), told.get("showResults", before.show_results)
    return EditorSettings(asked, enable is not False, shows is not False)


def asked_in(comment: FileComment) -> Asked:
    return Asked(comment.gpu, comment.gpus, comment.within, comment.eu, comment.budget_usd)


def both(settings: Asked, comment: Asked) -> Asked:
    """What the comment says, and of the rest what the settings say."""
    said = {name: value for name, value in comment._asdict().items() if value}
    return settings._replace(**said)


def card_fields(asked: Asked) -> dict[str, object]:
    given = {"hardware.gpu": asked.gpu, "hardware.gpus": asked.gpus}
    return {field: value for field, value in given.items() if value is not None}


def card_flags(asked: Asked) -> list[str]:
    """As the command line takes them."""
    gpu = [] if asked.gpu is None else ["--gpu", asked.gpu]
    return gpu if asked.gpus is None else [*gpu, "--gpus", str(asked.gpus)]


def plan_flags(asked: Asked) -> list[str]:
    within = [] if asked.within is None else ["--within", asked.within]
    budget = [] if asked.budget is None else ["--max-usd", f"{asked.budget:g}"]
    return [*within, *budget, *(["--eu"] if asked.eu else [])]


def plan_options(asked: Asked) -> dict[str, Any]:
    options = {"within": asked.within, "max_usd": asked.budget, "eu": asked.eu or None}
    return {name: value for name, value in options.items() if value is not None}


def _value(name: str, given: object) -> Any:
    """What was meant; nothing where it is no such value."""
    if name == "eu":
        return given not in (False, None) and str(given).lower() not in NO
    if given is None or given == "":
        return None
    if name == "gpus":
        return positive(given)
    text = str(given)[:LONGEST].strip()
    if name == "budget":
        return dollars(text)
    return None if name == "within" and duration_s(text) is None else text or None
