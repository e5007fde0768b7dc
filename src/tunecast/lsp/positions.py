"""Places in a text as readers tell them and as the protocol counts them: lines from 0, columns in UTF-16 units.

A reader's line is not always an editor's: YAML also breaks lines at U+0085, U+2028 and U+2029, editors and TOML do not.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

from tunecast.records import NamedTuple

_BREAK = re.compile(r"\r\n|\r|\n")
_YAML_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_WORD = r"[\w.-]"


class Position(NamedTuple):
    line: int
    character: int


class Span(NamedTuple):
    start: Position
    end: Position

    def has(self, line: int) -> bool:
        return self.start.line <= line <= self.end.line


class Text:
    """A text, and where its lines begin."""

    def __init__(self, text: str, units: str = "utf-16") -> None:
        self.text, self.units = text, units
        self.starts = _starts(text, _BREAK)

    @cached_property
    def _yaml_starts(self) -> Sequence[int]:
        return _starts(self.text, _YAML_BREAK)

    def position(self, offset: int) -> Position:
        line = bisect_right(self.starts, offset) - 1
        return Position(line, units_in(self.text[self.starts[line] : offset], self.units))

    def offset(self, position: Position) -> int:
        """What lies behind the end of a line, or of the text, is its end."""
        if position.line >= len(self.starts):
            return len(self.text)
        line = self.line(position.line)
        count = 0
        for index, letter in enumerate(line):
            if count >= position.character:
                return self.starts[position.line] + index
            count += units_in(letter, self.units)
        return self.starts[position.line] + len(line)

    def line(self, number: int) -> str:
        """Without what ends it; '' behind the last."""
        if number >= len(self.starts):
            return ""
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.text)
        return self.text[self.starts[number] : end].rstrip("\r\n")

    def span(self, start: int, end: int) -> Span:
        return Span(self.position(start), self.position(end))

    def key_span(self, line: int, key: str, *, yaml: bool) -> Span:
        """Of a key and its value on a reader's line, from 1 on; of the whole line where the key is not found there, as
        of an item of a list or of a comment. Line 0: the first that holds anything."""
        starts = self._yaml_starts if yaml else self.starts
        if line < 1:
            start = len(self.text) - len(self.text.lstrip())
            line = bisect_right(starts, start)
        start = starts[min(line, len(starts)) - 1]
        found = re.compile(r"[^\r\n]*").match(self.text, start)
        content = found[0] if found else ""
        within = _key_within(content, key.rpartition(".")[2])
        return self.span(start + within[0], start + within[1])


def units_in(text: str, units: str) -> int:
    if text.isascii() or units == "utf-32":
        return len(text)
    if units == "utf-8":
        return len(text.encode("utf-8", "replace"))
    return len(text) + sum(letter > "\uffff" for letter in text)


def _key_within(content: str, leaf: str) -> tuple[int, int]:
    """Where a key begins and its value ends, on one line."""
    first = len(content) - len(content.lstrip())
    last = len(_without_comment(content).rstrip(" \t,"))
    found = re.search(rf"(?<![\w.-])[\"']?{re.escape(leaf)}[\"']?[ \t]*[:=]", content) if leaf else None
    if found is None:
        return first, max(first, last)
    rest = content[found.end() :]
    if "{" in content[: found.start()] or content.count('":') > 1:  # several keys on one line
        value = re.match(r"[ \t]*(\"[^\"]*\"|'[^']*'|\[[^\]]*\]|[^,}\]]*)", rest)
        last = found.end() + (len(value[0].rstrip()) if value else 0)
    return found.start(), max(found.end(), last)


def _without_comment(content: str) -> str:
    """A line that is nothing else is left as it is."""
    found = None if content.lstrip().startswith("#") else re.search(r"[ \t]#", content)
    return content[: found.start()] if found else content


def _starts(text: str, breaks: re.Pattern[str]) -> Sequence[int]:
    return [0, *(found.end() for found in breaks.finditer(text))]


def key_path(text: Text, position: Position) -> str | None:
    """The key of a line, without what it stands in; None where there is none."""
    found = re.match(rf"[ \t]*(?:-[ \t]+)?[\"']?({_WORD}+)[\"']?[ \t]*[:=]", text.line(position.line))
    return found[1] if found else None
