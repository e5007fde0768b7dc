"""Which country a provider's region stands in: catalog/regions.csv.

Source  the price lists themselves where they say it; Azure's: learn.microsoft.com/azure/reliability/regions-list.
        A dozen newer regions of AWS and Google no list at hand has a price for are from their documentation, unchecked.

A region that is not in it has no country here: none is guessed from its name, as eu-west-2 is London.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from tunecast.errors import UsageError
from tunecast.hardware.grids import grid

NAMED_BY_COUNTRY = frozenset(("runpod", "vast.ai"))
"""Whose regions are countries."""


def country_of(provider: str, region: str, via: str = "") -> str:
    """Two letters; '' where it is not known."""
    if via == "shadeform":  # city-country-number
        parts = region.split("-")
        return _named(parts[-2]) if len(parts) == 3 else ""
    if provider in NAMED_BY_COUNTRY:
        return region if len(region) == 2 and region.isupper() else ""
    return _regions().get((provider, region), "")


def _named(country: str) -> str:
    try:
        return grid(country).country
    except UsageError:
        return ""


@cache
def _regions() -> Mapping[tuple[str, str], str]:
    text = (files("tunecast.market") / "catalog" / "regions.csv").read_text("utf-8")
    return {(row["provider"], row["region"]): row["country"] for row in csv.DictReader(text.splitlines())}
