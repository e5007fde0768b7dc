"""What a country's electricity emits: one table, `grids.toml`. A country that is not in it is not guessed at."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from tunecast.errors import UsageError, nearest
from tunecast.records import NamedTuple
from tunecast.tables import Tables, text_beside

FIELD = "hardware.country"


class Grid(NamedTuple):
    """Grams of CO2 equivalent a kilowatt-hour, over the life of the power stations."""

    country: str
    """ISO 3166-1, two letters."""
    name: str
    g_per_kwh: float
    year: str
    source: str


def grid(country: str) -> Grid:
    """The electricity of a country, by its two or three letters or its English name. Raises `UsageError`."""
    code = _names().get(country.strip().lower())
    if code is None:
        near = nearest(country.strip().lower()[:64], _names())
        hint = f"; nearest: {_countries()[_names()[near]]['name']}" if near is not None else ""
        allowed = f"one of the {len(_countries())} countries of grids.toml, as DE, DEU or Germany; or null"
        raise UsageError(f"{FIELD}: got {country[:64]!r}; allowed: {allowed}{hint}", field=FIELD)
    row, about = _countries()[code], _table()["about"]
    return Grid(code, row["name"], float(row["g_per_kwh"]), about["year"], about["source"])


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return Tables(text_beside(__file__, "grids.toml"))


def _countries() -> Mapping[str, Any]:
    return _table()["countries"]


@cache
def _names() -> dict[str, str]:
    rows = _countries().items()
    return {name.lower(): code for code, row in rows for name in (code, row["alpha3"], row["name"])} | OTHER_NAMES


OTHER_NAMES = {"uk": "GB", "england": "GB", "usa": "US", "korea": "KR", "holland": "NL", "türkiye": "TR"}
"""What people write."""
