"""The rows of a file, one after another, and what is wrong with those that are none: JSON Lines, JSON, CSV, text."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tunecast.job.texts.files import TextFile
from tunecast.job.texts.lines import MOST_LINE_BYTES, NOT_UTF8, TOO_LONG, BadLine, Seen, lines_of, not_utf8, pieces_of

Row = Mapping[str, Any]
Found = tuple[int, Row | BadLine]
"""With the number of its line, or of the row where a file has no lines."""

_CUT_OFF = 16
"""Characters before the end of what was read within which JSON may only have been cut off: `fals`, `\\u00`."""


_ESCAPED = re.compile("[\udc80-\udcff]")
"""Bytes that are not UTF-8, as Python decodes them under `surrogateescape`."""


def rows_of(file: TextFile, seen: Seen) -> Iterator[Found]:
    """Raises `NotResolved` where the file cannot be read on."""
    if file.format in ("parquet", "arrow"):
        from tunecast.job.texts.arrow import arrow_rows

        return arrow_rows(file, seen)
    readers: Mapping[str, Callable[[TextFile, Seen], Iterator[Found]]] = {
        "jsonl": _json_lines, "json": _json, "csv": _csv, "tsv": _csv, "text": _text,
    }  # fmt: skip
    return readers[file.format](file, seen)


def _json_lines(file: TextFile, seen: Seen) -> Iterator[Found]:
    loads = json.loads
    for number, line in lines_of(file, seen):
        if isinstance(line, BadLine):
            yield number, line
            continue
        if not line or line.isspace():
            continue
        try:
            row = loads(line.decode())
        except (ValueError, RecursionError) as error:
            yield number, BadLine(file.path, number, _json_reason(error))
            continue
        yield number, row if isinstance(row, dict) else BadLine(file.path, number, _no_object(row))


def _json(file: TextFile, seen: Seen) -> Iterator[Found]:
    """A list of objects; or objects one after another, as `datasets` also takes from such a file; or one object that
    holds a list, which is read from its first bracket on."""
    return _Objects(file, seen).rows()


class _Objects:
    """JSON read from a window: what was decoded is dropped, and more is read where a value is cut off."""

    def __init__(self, file: TextFile, seen: Seen) -> None:
        self.file = file
        self.pieces = pieces_of(file, seen)
        self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.text, self.place, self.line = "", 0, 1
        self.over, self.spoiled = False, False

    def rows(self) -> Iterator[Found]:
        decode, first = json.JSONDecoder().raw_decode, True
        while True:
            self._skip("[, \t\r\n" if first else ", \t\r\n]")
            if self.place >= len(self.text):
                return
            try:
                row, end = decode(self.text, self.place)
            except (ValueError, RecursionError) as error:
                if self._is_cut_off(error):
                    continue
                yield self.line, self._bad(_json_reason(error) + "; nothing after it was read")
                return
            first = False
            if self.spoiled and _ESCAPED.search(self.text, self.place, end):
                yield self.line, self._bad(NOT_UTF8)
            else:
                yield from self._told(row)
            self._drop(end)

    def _told(self, row: object) -> Iterator[Found]:
        if not isinstance(row, dict):
            yield self.line, self._bad(_no_object(row))
            return
        inner = next((value for value in row.values() if _is_rows(value)), None)
        if inner is None or _is_sample(row):
            yield self.line, row
        else:
            yield from ((self.line, each if isinstance(each, dict) else self._bad(_no_object(each))) for each in inner)

    def _is_cut_off(self, error: Exception) -> bool:
        """Whether more of the file was read, which may be what the value lacks."""
        if self.over or isinstance(error, RecursionError):
            return False
        at = getattr(error, "pos", len(self.text))
        if at < len(self.text) - _CUT_OFF and not str(error).startswith("Unterminated string"):
            return False
        if len(self.text) - self.place > MOST_LINE_BYTES:
            return False
        self._read(max(1, len(self.text) - self.place))
        return True

    def _skip(self, blanks: str) -> None:
        while True:
            while self.place < len(self.text) and self.text[self.place] in blanks:
                self.line += self.text[self.place] == "\n"
                self.place += 1
            if self.place < len(self.text) or self.over:
                return
            self._read(1)

    def _read(self, least: int) -> None:
        """At least so many characters more, so that a long value is not decoded over and over."""
        found, size = [self.text[self.place :]], 0
        while size < least and not self.over:
            piece = next(self.pieces, b"")
            self.over = not piece
            found.append(self.decoder.decode(piece, self.over))
            self.spoiled = self.spoiled or _ESCAPED.search(found[-1]) is not None
            size += len(found[-1])
        self.text, self.place = "".join(found), 0

    def _drop(self, end: int) -> None:
        self.line += self.text.count("\n", self.place, end)
        self.place = end

    def _bad(self, reason: str) -> BadLine:
        return BadLine(self.file.path, self.line, reason)


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _is_sample(row: Mapping[str, Any]) -> bool:
    from tunecast.job.texts.columns import format_of

    return format_of(row) is not None


def _json_reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return not_utf8(error)
    told = getattr(error, "msg", None) or str(error)
    column = getattr(error, "colno", None)
    return f"not JSON: {told}" + ("" if column is None else f" (column {column})")


def _no_object(row: object) -> str:
    kinds = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}
    return f"not an object, but {kinds.get(type(row), 'null')}"


def _csv(file: TextFile, seen: Seen) -> Iterator[Found]:
    """With a line that names the columns. The field size is the module's own setting, and is put back."""
    bad: dict[int, str] = {}
    before_limit = csv.field_size_limit(MOST_LINE_BYTES)
    try:
        reader = csv.reader(_decoded(file, seen, bad), delimiter="\t" if file.format == "tsv" else ",")
        names: list[str] | None = None
        while True:
            begins = reader.line_num + 1
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield begins, BadLine(file.path, begins, f"not CSV: {error}")
                continue
            reason = next((bad.pop(number) for number in sorted(bad) if number <= reader.line_num), None)
            if not values and reason is None:
                continue
            if names is None and reason is None:
                names = values
            elif names is None or reason is not None or len(values) != len(names):
                told = reason or f"{len(values)} columns, not {len(names or ())}"
                yield begins, BadLine(file.path, begins, told)
            else:
                yield begins, dict(zip(names, values, strict=True))
    finally:
        csv.field_size_limit(before_limit)


def _decoded(file: TextFile, seen: Seen, bad: dict[int, str]) -> Iterator[str]:
    """For csv, which puts quoted lines together: what is wrong with a line is told beside it."""
    for number, line in lines_of(file, seen):
        if isinstance(line, BadLine):
            bad[number] = TOO_LONG
            yield "\n"
            continue
        try:
            yield line.decode() + "\n"
        except UnicodeDecodeError as error:
            bad[number] = not_utf8(error)
            yield line.decode(errors="replace") + "\n"


def _text(file: TextFile, seen: Seen) -> Iterator[Found]:
    """A sample a line, as `datasets` reads such files."""
    for number, line in lines_of(file, seen):
        if isinstance(line, BadLine):
            yield number, line
        elif line.strip():
            try:
                yield number, {"text": line.decode()}
            except UnicodeDecodeError as error:
                yield number, BadLine(file.path, number, not_utf8(error))
