"""From price lists to offers: what is not to be trusted is left out, and counted by its reason.

    listings ► prices (on demand, spot, reserved) ► the rules below, in this order ► one offer a distinct price

The same rules hold for what is bundled and for what `tunecast offers update` fetches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from statistics import median
from typing import NamedTuple

from tunecast.offers.listing import Listing
from tunecast.offers.names import card, family, is_ambiguous
from tunecast.offers.offer import LISTED, ON_DEMAND, PROVEN, RESERVED, SPOT, Offer
from tunecast.offers.provider import provider
from tunecast.units import GIB

OLDEST = timedelta(days=730)
"""Older prices tell nothing: within two years those of an H100 more than halved."""
FAR = 6.0
"""Times the median of the providers' medians of a card and kind, up or down: no real price of the lists at hand lies
further off (the dearest, Azure's H100 in one region, is 5.3 times it); what is mistyped, or of a slice of a card,
does."""
NEWER = timedelta(days=90)
"""A list this much newer replaces an older one of the same provider, card and count."""
SAME = 0.02
"""Prices this close are the same, rounded."""
MOST_RAM_GIB = 65_536
EVERYWHERE = frozenset(("runpod", "lambda"))
"""Whose list in SkyPilot's catalogue names every machine in every region."""
SOLD: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("coreweave", "a100-sxm-80gb"): (8,), ("coreweave", "h100-sxm-80gb"): (8,), ("coreweave", "h100-nvl-94gb"): (),
    ("coreweave", "h200-sxm-141gb"): (8,), ("coreweave", "b200-sxm-180gb"): (8,), ("coreweave", "l40s"): (8,),
    ("oracle", "b200-sxm-180gb"): (8,), ("oracle", "h100-nvl-94gb"): (),
    ("crusoe", "gb200-186gb"): (4,),
}  # fmt: skip
"""Machines some providers sell whole: a list that names other counts means the price of a share of one.

Source  coreweave.com/pricing (2026-09-20: HGX machines of 8, NVL72 trays of 4); Oracle's shapes (BM.GPU.B200.8).
"""

NO_SPOT = frozenset((("lyceum", "l40s"),))
"""Priced as spot in the list, but not to be had as such.

Source  onticlabs/skypilot-lyceum README, C9: "L40S has no spot variant at all".
"""

NO_PRICE = "no price"
OLD = "older than two years"
NOT_SPOT = "spot price equal to the on-demand price: none was known"
NOT_SOLD = "a count, or a kind, the provider does not sell"
GUESSED = "form factor guessed by the list: it has two at one price, or the provider's own list says otherwise"
TWICE = "count multiplied in twice"
OUTLIER = "price far off the card's median"
REPLACED = "a newer list of the same provider"
NO_PLACE = "no region, where another row of the provider has the price with one"


class Price(NamedTuple):
    """One price of a listing, and the card it was found to be for."""

    listing: Listing
    kind: str
    gpu: str
    gpus: int
    usd_per_hour: float

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_hour / self.gpus

    @property
    def machine(self) -> tuple[str, str, int, str]:
        return self.listing.provider, self.gpu, self.gpus, self.kind


@dataclass(frozen=True)
class Cleaned:
    offers: tuple[Offer, ...]
    kept: int
    """Prices the offers were made of: one of several regions is one offer."""
    dropped: Mapping[str, int]
    """Prices, by reason."""


def cleaned(listings: Iterable[Listing], today: date) -> Cleaned:
    dropped: Counter[str] = Counter()
    prices: list[Price] = []
    for listing in listings:
        found, why = _prices(listing, today)
        prices += found
        dropped.update(why)
    rules: Sequence[tuple[str, Callable[[Sequence[Price]], set[int]]]] = (
        (TWICE, _twice),
        (GUESSED, _guessed),
        (OUTLIER, _outliers),
        (REPLACED, _replaced),
        (NO_PLACE, _unplaced),
    )
    for why_not, rule in rules:
        out = rule(prices)
        dropped[why_not] += len(out)
        prices = [each for index, each in enumerate(prices) if index not in out]
    return Cleaned(tuple(_merged(prices)), len(prices), {why: n for why, n in dropped.items() if n})


def _prices(listing: Listing, today: date) -> tuple[list[Price], list[str]]:
    """What one row offers, and why not the rest of it."""
    kind = ON_DEMAND if listing.term_hours is None else RESERVED
    asked = [(kind, listing.usd_per_hour), (SPOT, listing.spot_usd_per_hour)]
    known = [(name, value) for name, value in asked if value is not None]
    if not known:
        return [], [NO_PRICE]
    if today - listing.dated > OLDEST:
        return [], [OLD] * len(known)
    found = card(listing)
    if found.gpu is None:
        return [], [found.why] * len(known)
    if found.gpus not in SOLD.get((listing.provider, found.gpu), (found.gpus,)):
        return [], [NOT_SOLD] * len(known)
    prices, why = [], []
    for name, value in known:
        if name == SPOT and value == listing.usd_per_hour:
            why.append(NOT_SPOT)
        elif name == SPOT and (listing.provider, found.gpu) in NO_SPOT:
            why.append(NOT_SOLD)
        else:
            prices.append(Price(listing, name, found.gpu, found.gpus, value))
    return prices, why


def _guessed(prices: Sequence[Price]) -> set[int]:
    told = {(each.listing.provider, family(each.listing.gpu)) for each in prices if not each.listing.guessed_form}
    forms: dict[tuple[str, str, int, str, float], set[str]] = defaultdict(set)
    for each in prices:
        forms[_at(each)].add(each.gpu)
    return {
        index
        for index, each in enumerate(prices)
        if each.listing.guessed_form
        and is_ambiguous(each.listing.gpu)
        and (len(forms[_at(each)]) > 1 or (each.listing.provider, family(each.listing.gpu)) in told)
    }


def _at(each: Price) -> tuple[str, str, int, str, float]:
    return each.listing.provider, family(each.listing.gpu), each.gpus, each.kind, each.usd_per_hour


def _twice(prices: Sequence[Price]) -> set[int]:
    """One card at 2.40, two at 9.60, four at 38.40: each is the price of a card times the count, times the count.

    Of lists that multiply only: elsewhere a larger machine may really cost more a card.
    """
    multiplied = [(index, each) for index, each in enumerate(prices) if each.listing.guessed_form]
    single = {(*each.machine[:2], each.kind): each.usd_per_hour for _, each in multiplied if each.gpus == 1}
    out = set()
    for index, each in multiplied:
        one = single.get((*each.machine[:2], each.kind))
        if one is not None and each.gpus > 1 and abs(each.usd_per_hour / (one * each.gpus**2) - 1) < SAME:
            out.add(index)
    return out


def _outliers(prices: Sequence[Price]) -> set[int]:
    by_provider: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in prices:
        by_provider[each.gpu, each.kind][each.listing.provider].append(each.usd_per_gpu_hour)
    usual = {key: median(median(of) for of in sellers.values()) for key, sellers in by_provider.items()}
    return {
        index
        for index, each in enumerate(prices)
        if not 1 / FAR <= each.usd_per_gpu_hour / usual[each.gpu, each.kind] <= FAR
    }


def _replaced(prices: Sequence[Price]) -> set[int]:
    """By a newer list; a row with a region only by one that has regions too, or where is lost."""
    newest: dict[tuple[tuple[str, str, int, str], bool], date] = {}
    for each in prices:
        for placed in {_placed(each), False}:
            key = each.machine, placed
            newest[key] = max(newest.get(key, date.min), each.listing.dated)
    return {
        index for index, each in enumerate(prices) if newest[each.machine, _placed(each)] - each.listing.dated > NEWER
    }


def _unplaced(prices: Sequence[Price]) -> set[int]:
    placed: dict[tuple[str, str, int, str], list[Price]] = defaultdict(list)
    for each in prices:
        if _placed(each):
            placed[each.machine].append(each)
    return {
        index
        for index, each in enumerate(prices)
        if not _placed(each) and any(_says(other, each) for other in placed[each.machine])
    }


def _says(other: Price, each: Price) -> bool:
    close = abs(other.usd_per_hour / each.usd_per_hour - 1) <= SAME
    return close or other.listing.dated >= each.listing.dated


def _placed(each: Price) -> bool:
    return bool(each.listing.country)


def _merged(prices: Iterable[Price]) -> list[Offer]:
    """One offer a distinct price of a machine, with its regions, in a lasting order."""
    alike: dict[tuple[object, ...], list[Price]] = defaultdict(list)
    for each in prices:
        row = each.listing
        alike[*each.machine, each.usd_per_hour, row.instance, row.via, row.source, row.term_hours].append(each)
    return sorted((_offer(each) for each in alike.values()), key=order)


def order(offer: Offer) -> tuple[str, str, int, str, float, str, tuple[str, ...]]:
    return offer.provider, offer.gpu, offer.gpus, offer.kind, offer.usd_per_hour, offer.instance, offer.regions


def _offer(prices: Sequence[Price]) -> Offer:
    first = prices[0]
    row = first.listing
    places = sorted({(each.listing.country, each.listing.region) for each in prices if each.listing.region})
    return Offer(
        provider=row.provider,
        kind=first.kind,
        gpu=first.gpu,
        gpus=first.gpus,
        usd_per_hour=first.usd_per_hour,
        dated=min(each.listing.dated for each in prices),
        source=row.source,
        regions=tuple(region for _, region in places),
        countries=tuple(country for country, _ in places),
        placed=LISTED if not places or (row.provider in EVERYWHERE and not row.via) else PROVEN,
        instance=row.instance,
        vcpus=row.vcpus,
        ram_bytes=_ram_bytes(row.ram_gib),
        max_nodes=1 if provider(row.provider).joins_nodes is False else None,
        via=row.via,
        term_hours=row.term_hours,
    )


def _ram_bytes(gib: float | None) -> int | None:
    """None for what no machine has."""
    return round(gib * GIB) if gib is not None and 1 <= gib <= MOST_RAM_GIB else None
