"""CSV from a server that is not trusted."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping

from tunecast.errors import NotResolved

MOST_ROWS = 400_000
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
            if reader.line_num > MOST_ROWS:
                raise NotResolved(f"{where}: more than {MOST_ROWS} rows, the most that is read")
            if None in row or None in row.values():
                raise NotResolved(f"{where}, line {reader.line_num}: not as many cells as columns")
            yield row
    except csv.Error:
        raise NotResolved(f"{where}, line {reader.line_num}: not a line of a table") from None
