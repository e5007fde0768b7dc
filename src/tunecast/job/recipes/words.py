"""Words of a command, and what flags among them say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tunecast.job.recipes.document import scalar
from tunecast.records import NamedTuple


class Word(str):
    """A word of a command, and the line it stands on."""

    line: int

    def __new__(cls, text: str, line: int = 0) -> Word:
        made = super().__new__(cls, text)
        made.line = line
        return made


def is_open(text: str) -> bool:
    """Whether a word hangs on what the script does not say."""
    return "$" in text or "`" in text


class Flags(NamedTuple):
    """Words behind a command: `--key value`, `--key=value`, and what stands before the first of them."""

    values: dict[str, Any]
    lines: dict[str, int]
    rest: list[Word]


def flags_of(words: Iterable[Word]) -> Flags:
    """As argparse reads flags of which each takes what follows it: nothing is true, several are a list."""
    found: dict[str, list[Word]] = {}
    lines: dict[str, int] = {}
    rest: list[Word] = []
    taken: list[Word] = rest
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            taken = found[name] = [Word(value, word.line)] if equals else []
            lines[name] = word.line
        elif not (taken and is_open(word) and word.startswith("$")):  # "$@", $EXTRA_ARGS: more flags, perhaps
            taken.append(word)
    values = {name: _value(given) for name, given in found.items()}
    return Flags(values, lines, rest)


def assignments_of(words: Iterable[Word]) -> Flags:
    """`key=value` as Hydra and OmegaConf read them; `+key` and `++key` too, and `~key` is null."""
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    rest: list[Word] = []
    for word in words:
        name, equals, value = word.lstrip("-+").partition("=")
        if word.startswith("~"):
            name, value, equals = word[1:].partition("=")[0], "null", "="
        if not equals:
            rest.append(word)
            continue
        values[name], lines[name] = scalar(value), word.line
    return Flags(values, lines, rest)


def _value(given: list[Word]) -> Any:
    if not given:
        return True
    return scalar(given[0]) if len(given) == 1 else [scalar(word) for word in given]
