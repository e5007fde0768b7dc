"""JSON from a server that is not trusted."""

from __future__ import annotations

import json
import math
from typing import Any

from tunecast.errors import NotResolved
from tunecast.market.listing import words
from tunecast.records import NamedTuple

MOST_ROWS = 5_000


class Stock(NamedTuple):
    is_free: bool
    usd_per_hour: float | None
    """Of the machine; the least where there are several."""


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
