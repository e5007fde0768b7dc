"""JSON and CSV from servers that are not trusted."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.errors import NotResolved
from tunecast.market.listing import words
from tunecast.records import NamedTuple

MOST_ROWS = 5_000


class Stock(NamedTuple):
    is_free: bool
    usd_per_hour: float | None
    """Of the machine; the least where there are several."""


def address(environ: Mapping[str, str], name: str, usual: str) -> str:
    """Where to ask: a mirror that the environment names, or the usual place. Raises `NotResolved`."""
    url = environ.get(name) or usual
    if re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url) is None:
        raise NotResolved(f"{name}: allowed: an http:// or https:// address")
    return url


def read(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise NotResolved(f"{where}: not JSON") from None


def member(value: Any, name: str, where: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise NotResolved(f"{where}: has no {name!r}")
    return value[name]


def rows_in(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > MOST_ROWS or not all(isinstance(row, dict) for row in value):
        raise NotResolved(f"{where}: not a list of at most {MOST_ROWS} objects")
    return value


def text_in(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return words(value) if isinstance(value, str) else ""


def number_in(row: dict[str, Any], name: str) -> float | None:
    """None for what is not one, is not finite, or is beyond all machines."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e9 and math.isfinite(value) else None


MOST_LINES = 400_000
"""The longest at hand, SkyPilot's of AWS, has a tenth of it."""


def rows(content: bytes, needed: frozenset[str], where: str) -> Iterator[Mapping[str, str]]:
    """Row by row, with at least these columns. Raises `NotResolved`: not text, not this table, cut off, endless."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NotResolved(f"{where}: not UTF-8") from None
    if not text.endswith("\n"):
        raise NotResolved(f"{where}: cut off in the middle of a line")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        missing = needed - set(reader.fieldnames or ())
        if missing:
            raise NotResolved(f"{where}: no table of prices: lacks {', '.join(sorted(missing))}")
        for row in reader:
            if reader.line_num > MOST_LINES:
                raise NotResolved(f"{where}: more than {MOST_LINES} rows, the most that is read")
            if None in row or None in row.values():
                raise NotResolved(f"{where}, line {reader.line_num}: not as many cells as columns")
            yield row
    except csv.Error:
        raise NotResolved(f"{where}, line {reader.line_num}: not a line of a table") from None
