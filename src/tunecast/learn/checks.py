"""What one value of a record may be: finite, bounded, and of few characters. A record may come from anyone.

A field of a frozen value is declared together with its check, so a new field of a record is one line; `read` makes such
a value from a mapping and tells everything that is wrong with it at once. A key that no field has is dropped: a newer
tunecast may write more than this one knows, and what nobody checked is neither stored nor passed on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, TypeVar

from tunecast import records
from tunecast.job.knob import Problem, Wrong, shown

Check = Callable[[Any], Any]
"""Gives the value a field holds; raises `Wrong` with what is allowed."""
T = TypeVar("T")

MOST_BYTES = 2**50
"""As a job's own sizes are bounded (job/sections.py)."""
MOST_SECONDS = 1e9
"""Thirty years."""
MOST_COUNT = 10**16
"""As `data.tokens` of a job."""
FIRST_YEAR, LAST_YEAR = 2015, 2100
"""Before the first no language model was fine-tuned on a GPU that is listed; a later one is a clock that is wrong."""
WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
PRODUCT = re.compile(r"(?!.*/.*/)[A-Za-z0-9(\[](?:[A-Za-z0-9 ()\[\]@.,_+:-]|(?<=\w)/(?=\w)){0,99}")
"""A card's or processor's name as its maker gives it: `AMD EPYC 9654 96-Core Processor`, `Radeon RX 7900 XT/7900 XTX`.
Two slashes make it a path."""
SENTENCE = re.compile(r"(?!.*(?:^|[\s('\"=:])[~.]{0,2}/)[ -\[\]-~]{1,400}")
"""A line of plain characters in which no path begins, and without backslashes."""
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def checked_field(check: Check, *, required: bool = False) -> Any:
    """A field and its check; without `required` null is one of its values, and what it has where nothing is given."""
    return records.field(default=records.MISSING if required else None, metadata={"check": check})


def whole_number(most: int = MOST_COUNT) -> Check:
    """A whole number from 0 on; JSON of other programs may write it as 3.0."""

    def check(given: Any) -> int:
        whole = int(given) if isinstance(given, float) and isfinite(given) and given.is_integer() else given
        if isinstance(whole, bool) or not isinstance(whole, int) or not 0 <= whole <= most:
            raise Wrong(f"got {shown(given)}; allowed: a whole number from 0 to {most}")
        return whole

    return check


def number(most: float = MOST_SECONDS, least: float = 0.0) -> Check:
    def check(given: Any) -> float:
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not least <= given <= most:
            raise Wrong(f"got {shown(given)}; allowed: a number from {least:g} to {most:g}")
        return float(given)

    return check


def text(pattern: re.Pattern[str], what: str) -> Check:
    def check(given: Any) -> str:
        if not isinstance(given, str) or not pattern.fullmatch(given):
            raise Wrong(f"got {shown(given)}; allowed: {what}")
        return given

    return check


def choice(*allowed: str) -> Check:
    def check(given: Any) -> str:
        if given not in allowed:
            raise Wrong(f"got {shown(given)}; allowed: {', '.join(allowed)}")
        return str(given)

    return check


def moment(given: Any) -> str:
    """A second of UTC, as RFC 3339 writes it."""
    from datetime import datetime

    try:
        if not isinstance(given, str) or not DAY.fullmatch(given):
            raise ValueError
        if not FIRST_YEAR <= datetime.fromisoformat(given).year <= LAST_YEAR:
            raise ValueError
    except ValueError:
        allowed = "a time in UTC such as 2026-11-18T07:00:00Z"
        raise Wrong(f"got {shown(given)}; allowed: {allowed}, from {FIRST_YEAR} to {LAST_YEAR}") from None
    return given


def list_of(each: Check, least: int, most: int) -> Check:
    """A list, as a tuple."""

    def check(given: Any) -> tuple[Any, ...]:
        if not isinstance(given, (list, tuple)) or not least <= len(given) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            raise Wrong(f"got {shown(given)}; allowed: a list of {count}")
        return tuple(each(one) for one in given)

    return check


def mapping_of(each: Check, names: Sequence[str]) -> Check:
    """A mapping of known names, any of which may be missing; others are dropped."""

    def check(given: Any) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise Wrong(f"got {shown(given)}; allowed: a mapping")
        found = {}
        for name in names:
            if given.get(name) is not None:
                try:
                    found[name] = each(given[name])
                except Wrong as wrong:
                    raise Wrong(f"{name}: {wrong}") from None
        return found

    return check


def part(kind: type) -> Check:
    """A value of its own: what is wrong in it is told by its fields' names."""

    def check(given: Any) -> Any:
        if not isinstance(given, Mapping):
            raise Wrong(f"got {shown(given)}; allowed: a mapping")
        made, problems = read(kind, given)
        if problems:
            raise Several(problems)
        return made

    return check


class Several(Wrong):
    """What is wrong inside a part."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


def read(kind: type[T], given: Mapping[Any, Any]) -> tuple[T | None, list[Problem]]:
    """The value, or all that is wrong with it."""
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, check, required in _checks(kind):
        value = given.get(name)
        if value is None:
            if required:
                problems.append(Problem(name, "missing"))
            continue
        try:
            found[name] = check(value)
        except Several as several_wrong:
            problems += [Problem(f"{name}.{inner.field}", inner.message) for inner in several_wrong.problems]
        except Wrong as wrong:
            problems.append(Problem(name, str(wrong)))
    return (None, problems) if problems else (kind(**found), problems)


def unknown_keys(kind: type, given: Mapping[Any, Any]) -> Iterator[Any]:
    """Keys that no field of a value has."""
    known = {name for name, _, _ in _checks(kind)}
    return (key for key in given if key not in known)


def _checks(kind: type) -> Iterator[tuple[str, Check, bool]]:
    for each in records.fields(kind):
        yield each.name, each.metadata["check"], each.default is records.MISSING
