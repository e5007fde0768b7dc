"""Dollars and euros. Prices are kept in dollars, as the lists have them; a rate has a day and a source."""

from __future__ import annotations

from datetime import date

from tunecast.records import NamedTuple


class Rate(NamedTuple):
    usd_per_eur: float
    dated: date
    source: str

    def eur(self, usd: float) -> float:
        return usd / self.usd_per_eur


RATE = Rate(1.167, date(2025, 10, 28), "EUR/USD near 1.1670, fxstreet.com 2025-10-28; no newer one was at hand")
"""Say your own where it matters: --usd-per-eur."""


def given(usd_per_eur: float, today: date) -> Rate:
    return Rate(usd_per_eur, today, "as given")
