"""Offers as programs read them: those that a plan rents, and those that `tunecast offers` lists. None: not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import cached_property
from typing import Any, ClassVar

from tunecast.market.availability import Availability
from tunecast.market.filters import inside
from tunecast.market.jurisdiction import exposure, in_eu
from tunecast.market.offer import NOT_AVAILABILITY, Offer
from tunecast.market.provider import tenancy
from tunecast.market.store import sources
from tunecast.result import Result


@dataclass(frozen=True)
class RentedOffer(Result):
    """What names an offer in a plan; `tunecast offers` shows the rest."""

    provider: str
    via: str | None
    kind: str
    instance: str | None
    gpu: str
    gpus: int
    usd_per_hour: float
    regions: tuple[str, ...]
    countries: tuple[str, ...]
    placed: str
    dated: date
    source: str
    term_hours: float | None
    vcpus: int | None
    ram_bytes: int | None
    disk_bytes: int | None
    tenancy: str | None
    assumed: str | None


def rented(offer: Offer) -> RentedOffer:
    return RentedOffer(**_told(offer, RentedOffer))


def _told(offer: Offer, by: type[RentedOffer] | type[ListedOffer]) -> dict[str, Any]:
    """The fields a record shares with an offer; what nobody has said is None."""
    shared = {each.name: getattr(offer, each.name) for each in fields(by) if hasattr(offer, each.name)}
    told = {name: None if value == "" else value for name, value in shared.items()}
    return told | {"tenancy": tenancy(offer) or None}


@dataclass(frozen=True)
class ListedOffer(Result):
    """All that is known of one offer."""

    provider: str
    kind: str
    gpu: str
    gpus: int
    usd_per_hour: float
    usd_per_gpu_hour: float
    term_hours: float | None
    regions: tuple[str, ...]
    countries: tuple[str | None, ...]
    placed: str
    in_eu: str
    exposure: str
    instance: str | None
    vcpus: int | None
    ram_bytes: int | None
    interconnect: str | None
    fabric: str | None
    inter_node_gbit_per_s: float | None
    disk_bytes: int | None
    tenancy: str | None
    assumed: str | None
    outlier: str | None
    availability: Availability | None
    max_nodes: int | None
    via: str | None
    dated: date
    age_days: int
    stale: bool
    source: str


def listed(offer: Offer, today: date, outlier: str = "", free: Availability | None = None) -> ListedOffer:
    """`outlier`: why its price is not to be counted on. `free`: what its provider answered, where it was asked."""
    node = offer.node
    found: dict[str, Any] = {
        "countries": tuple(country or None for country in offer.countries),
        "in_eu": in_eu(offer),
        "exposure": exposure(offer),
        "interconnect": inside(offer).name if offer.gpus > 1 else None,
        "fabric": None if node is None else node.fabric,
        "inter_node_gbit_per_s": None if node is None else node.inter_node_gbit_per_s,
        "outlier": outlier or None,
        "availability": free,
        "age_days": offer.age_days(today),
        "stale": offer.is_stale(today),
        "source": sources().get(offer.source, offer.source),
    }
    return ListedOffer(**_told(offer, ListedOffer) | found)


@dataclass(frozen=True)
class Offers(Result):
    """The answer of `tunecast offers`."""

    schema: ClassVar[str] = "tunecast.offers/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "note", "unknown", "offers")

    found: tuple[Offer, ...]
    """What matches, the cheapest card-hour first."""
    today: date
    unknown: Mapping[str, int]
    """How many were left out because it is not known whether they match, by what is not known."""
    outliers: Mapping[Offer, str]
    """Those whose price is not to be counted on, with the reason."""
    free: Mapping[Offer, Availability]
    """What providers answered; empty where nobody was asked."""
    note: str = NOT_AVAILABILITY

    @cached_property
    def offers(self) -> tuple[ListedOffer, ...]:
        return tuple(listed(each, self.today, self.outliers.get(each, ""), self.free.get(each)) for each in self.found)
