"""What an editor's settings and a comment in the file say of the card and the limits of a plan. The comment wins.

# tunecast: gpu=rtx-4090 gpus=2 within=6h eu budget=50
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.errors import nearest_hint
from tunecast.records import NamedTuple
from tunecast.units import positive

COMMENT = re.compile(r"^[ \t]*#[ \t]*tunecast:(?P<words>[^\r\n]*)", re.MULTILINE)
NAMES = ("gpu", "gpus", "within", "eu", "budget")
NO = ("false", "no", "off", "0")


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


class Comment(NamedTuple):
    line: int
    """From 1 on; 0: there is none."""
    asked: Asked = Asked()
    problems: tuple[str, ...] = ()


def settings_of(given: object, before: EditorSettings = NO_SETTINGS) -> EditorSettings:
    """Of what a client sends: what is missing stays as it is, and what is no such value is left out."""
    if not isinstance(given, Mapping):
        return before
    inner = given.get("tunecast")
    told = inner if isinstance(inner, Mapping) else given
    asked = before.asked
    for name in NAMES:
        if name in told:
            value, _ = _value(name, told[name])
            asked = asked._replace(**{name: value})
    enable, shows = told.get("enable", before.enable), told.get("showResults", before.show_results)
    return EditorSettings(asked, enable is not False, shows is not False)


def comment_of(text: str) -> Comment:
    """The first such comment."""
    found = COMMENT.search(text)
    if found is None:
        return Comment(0)
    values: dict[str, Any] = {}
    problems = []
    for name, value in _words(found["words"]):
        if name not in NAMES:
            problems.append(f"got {name!r}; allowed: {', '.join(NAMES)}{nearest_hint(name, NAMES)}")
            continue
        read, wrong = _value(name, value)
        if wrong:
            problems.append(f"{name}: got {value!r}; allowed: {wrong}")
        else:
            values[name] = read
    return Comment(text.count("\n", 0, found.start()) + 1, Asked(**values), tuple(problems))


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


def _words(text: str) -> Iterator[tuple[str, str]]:
    for word in re.split(r"[\s,]+", text.strip()[:400]):
        name, _, value = word.partition("=")
        if name:
            yield name.lower(), value


def _value(name: str, given: object) -> tuple[Any, str]:
    """What was meant, and what is allowed where that is nothing of the kind."""
    if given is None or (given == "" and name != "eu"):
        return None, "a value"
    if name == "gpus":
        return positive(given), "" if positive(given) is not None else "a whole number from 1 on"
    if name == "eu":
        return given not in (False, None) and str(given).lower() not in NO, ""
    if name == "budget":
        return _dollars(given)
    text = str(given)[:100].strip()
    if name == "within" and not re.fullmatch(r"[0-9]+(\.[0-9]+)? ?(s|m|min|h|d)", text):
        return None, "a time such as 6h, 90min or 2d"
    return text or None, ""


def _dollars(given: object) -> tuple[float | None, str]:
    try:
        value = float(str(given).lstrip("$"))
    except ValueError:
        value = 0.0
    return (value, "") if 0 < value < 1e9 else (None, "dollars, such as 50")
