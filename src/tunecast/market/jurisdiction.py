"""Where a machine stands, and whose law reaches who runs it. Never more than the source says: unknown stays unknown.

The EU is its 27 members. Iceland, Liechtenstein and Norway are in the EEA, where the GDPR holds too; Switzerland and
the United Kingdom are in neither, and named apart.

Source  the EEA's 30 are the EU's 27 (since 2020-02-01) with Iceland, Liechtenstein and Norway: as listed at
        bienvivreledigital.orange.fr and en.euabc.com/word/421 (EEA).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from tunecast.errors import UsageError
from tunecast.hardware.grids import grid
from tunecast.market.offer import LISTED, OWNED, Offer
from tunecast.market.provider import EXPOSURES, Provider, provider

Answer = Literal["yes", "no", "unknown"]

EU27 = frozenset(
    (
        *("AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU"),
        *("IE", "IT", "LT", "LU", "LV", "MT", "NL", "PL", "PT", "RO", "SE", "SI", "SK"),
    )
)
EEA = EU27 | {"IS", "LI", "NO"}
SWITZERLAND = frozenset({"CH"})
UNITED_KINGDOM = frozenset({"GB"})
AREAS = {"EU": EU27, "EEA": EEA, "CH": SWITZERLAND, "GB": UNITED_KINGDOM}


def stands_in(offer: Offer, countries: Iterable[str]) -> Answer:
    """Whether it is to be had in one of them. `unknown` where no region's country is known, or none is proven."""
    wanted = frozenset(countries)
    if offer.known_countries & wanted:
        return "unknown" if offer.placed == LISTED else "yes"
    return "unknown" if not offer.regions or "" in offer.countries else "no"


def narrowed(offer: Offer, countries: Iterable[str]) -> Offer:
    """Only its regions in these countries: of an offer that is to be had there."""
    wanted = frozenset(countries)
    places = [place for place in zip(offer.regions, offer.countries, strict=True) if place[1] in wanted]
    regions, where = zip(*places, strict=True) if places else ((), ())
    return replace(offer, regions=regions, countries=where)


def in_eu(offer: Offer) -> Answer:
    return stands_in(offer, EU27)


def area(country: str) -> str:
    """`EU`, `EEA` (but not EU), `CH`, `GB`, or the country itself."""
    return next((name for name, members in AREAS.items() if country in members), country)


def exposure(offer: Offer) -> str:
    """The most exposed of who runs it and who sells it: a broker under US law hands over what it holds, too."""
    if offer.kind == OWNED:
        return "own"
    return max((provider(name).exposure for name in _parties(offer)), key=EXPOSURES.index)


def beyond_us_law(offer: Offer) -> Answer:
    """`yes` is no more than: no parent under US law is known, and a source says who they are.

    `unknown` where there is a nexus whose reach is disputed, or where nobody looked.
    """
    level = exposure(offer)
    if level == "us-controlled":
        return "no"
    sourced = all("exposure" not in provider(name).unverified for name in _parties(offer))
    return "yes" if level in ("own", "no-known-us-parent", "other-law") and sourced else "unknown"


def _parties(offer: Offer) -> list[str]:
    return [name for name in (offer.provider, offer.via) if name]


def told(of: Provider) -> str:
    """A level in words, with what it does not claim."""
    return {
        "us-controlled": "a US company, or owned by one: the CLOUD Act reaches it wherever the machine stands",
        "eu-seat-us-nexus": "seat in Europe, subsidiaries or a listing in the US: how far US law reaches is disputed",
        "no-known-us-parent": "no parent under US law is known; that is not proof that there is none",
        "other-law": "under another country's law of access",
        "unknown": "not known who controls it",
    }[of.exposure]


def country(text: str) -> str:
    """`DE` from DE, DEU or Germany. Raises `UsageError`."""
    if text.upper() in EEA:  # Liechtenstein has no power stations worth a row in grids.toml
        return text.upper()
    try:
        return grid(text).country
    except UsageError as error:
        raise UsageError(error.message.replace("hardware.country", "--country"), field="--country") from None
