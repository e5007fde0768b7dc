"""From price lists to offers: what is not to be trusted is left out, and counted by its reason.

    listings ► prices (on demand, spot, reserved) ► the rules below, in this order ► one offer a distinct price

A price far off the level of the others for the card is mistyped, or of a slice of a card, or its whole list is in
another unit. The same rules hold for what is bundled and for what `tunecast offers update` fetches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from statistics import median

from tunecast.hardware.links import nodes
from tunecast.market.listing import Listing
from tunecast.market.names import NOT_TOLD, card, chip, is_ambiguous, slower
from tunecast.market.offer import LISTED, ON_DEMAND, PROVEN, RESERVED, SPOT, Offer
from tunecast.market.provider import provider
from tunecast.records import NamedTuple
from tunecast.units import GB, GIB

FAR = 6.0
"""Times the median of the providers' medians of a card and kind, up or down. On demand, the dearest real one is at 3.8
times (Azure's H100 in one region); of spot prices that follow the one on demand, one real one is lost (8 L40S at AWS in
Mumbai, 8.4 times). The same holds against what the list said before: on demand DigitalOcean's H100 halved within 16
months, which is the most seen in the lists at hand."""
LARGEST_DISCOUNT = 0.91
"""Of a spot price against the one on demand: what Google announces, and the most in its list."""


class Price(NamedTuple):
    """One price of a listing, and the card it was found to be for."""

    listing: Listing
    kind: str
    gpu: str
    gpus: int
    usd_per_hour: float
    assumed: str = ""

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_hour / self.gpus

    @property
    def machine(self) -> tuple[str, str, int, str]:
        return self.listing.provider, self.gpu, self.gpus, self.kind


_Card = tuple[str, str]
"""gpu, kind."""


def far_off(prices: Sequence[Price], others: Sequence[Offer] = (), before: Sequence[Offer] = ()) -> set[int]:
    """Which of them, by index: off the other providers' level in `others`, else that of the list itself; or off what
    its provider asked `before`."""
    sold = _by_provider((each.gpu, each.kind, each.provider, each.usd_per_gpu_hour) for each in others)
    here = _by_provider((each.gpu, each.kind, each.listing.provider, each.usd_per_gpu_hour) for each in prices)
    once = _by_provider((each.gpu, each.kind, each.provider, each.usd_per_gpu_hour) for each in before)
    out = set()
    for index, each in enumerate(prices):
        card, maker, usd = (each.gpu, each.kind), each.listing.provider, each.usd_per_gpu_hour
        peers = [level for name, level in sold.get(card, {}).items() if name != maker]
        on_demand = [level for name, level in sold.get((each.gpu, ON_DEMAND), {}).items() if name != maker]
        if peers:
            near = _near(usd, median(peers))
        elif each.kind == SPOT and on_demand:
            near = median(on_demand) * (1 - LARGEST_DISCOUNT) / FAR <= usd <= median(on_demand) * FAR
        else:
            near = _near(usd, median(here[card].values()))
        asked = once.get(card, {}).get(maker)
        if not near or (asked is not None and not _near(usd, asked)):
            out.add(index)
    return out


def _near(usd: float, usual: float) -> bool:
    return 1 / FAR <= usd / usual <= FAR


def _by_provider(prices: Iterable[tuple[str, str, str, float]]) -> Mapping[_Card, Mapping[str, float]]:
    """Of each card and kind every provider's median: one with many rows is one voice."""
    found: dict[_Card, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for gpu, kind, name, usd in prices:
        found[gpu, kind][name].append(usd)
    return {card: {name: median(of) for name, of in sellers.items()} for card, sellers in found.items()}


NODE_PROVIDERS: Mapping[str, str] = {"oci": "oracle"}
"""As hardware/nodes.toml calls them, in lower case, where that is another name."""


class HostSize(NamedTuple):
    vcpus: int | None = None
    ram_gib: float | None = None


def hosts(listings: Iterable[Listing]) -> Mapping[tuple[str, str, int], HostSize]:
    """By provider, chip and number of cards, where all that tell of one tell the same; else None."""
    vcpus: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    ram_gib: dict[tuple[str, str, int], set[float]] = defaultdict(set)
    for row in listings:
        found = card(row)
        key = row.provider, chip(found.gpu or row.gpu), found.gpus
        vcpus[key].update(filter(None, (row.vcpus,)))
        ram_gib[key].update(filter(None, (row.ram_gib,)))
    for node in nodes().values():
        maker = node.provider.lower()
        key = NODE_PROVIDERS.get(maker, maker), chip(node.gpu), node.gpus
        vcpus[key].update(filter(None, (node.vcpus,)))
        ram_gib[key].update(filter(None, (node.ram_gib,)))
    return {
        key: HostSize(min(vcpus[key]) if len(vcpus[key]) == 1 else None, min(told) if len(told) == 1 else None)
        for key, told in ram_gib.items()
    }


OLDEST = timedelta(days=730)
"""Older prices tell little: in the lists at hand DigitalOcean's H100 went from 6.74 USD an hour (2025-01) to 3.39
(2026-05) and 4.41 (2026-08)."""
NEWER = timedelta(days=90)
"""A list this much newer replaces an older one of the same provider and card."""
SAME = 0.02
"""Prices this close are the same, rounded."""
MOST_RAM_GIB = 65_536
MOST_DISK_GB = 1_000_000
BARE_METAL = "BM."
"""Begins the names of Oracle's bare metal machines: no hypervisor, and so no neighbour."""
EVERYWHERE = frozenset(("runpod", "lambda"))
"""Whose list in SkyPilot's catalogue names every machine in every region."""
SOLD: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("coreweave", "a100-sxm-80gb"): (8,), ("coreweave", "h100-sxm-80gb"): (8,),
    ("coreweave", "h200-sxm-141gb"): (8,), ("coreweave", "b200-sxm-180gb"): (8,), ("coreweave", "l40s"): (8,),
    ("oracle", "b200-sxm-180gb"): (8,),
    ("crusoe", "gb200-186gb"): (4,),
}  # fmt: skip
"""Machines some providers sell whole: a list that names other counts means the price of a share of one.

Source  coreweave.com/pricing (2026-09-20: HGX machines of 8, NVL72 trays of 4); Oracle's shapes (BM.GPU.B200.8).
"""

NO_SPOT = frozenset((("lyceum", "l40s"),))
"""Priced as spot in the list, but not to be had as such.

Source  onticlabs/skypilot-lyceum README, C9: "L40S has no spot variant at all".
"""

UNMEASURED_HOSTS = frozenset((("lyceum", "b200-sxm-180gb"), ("lyceum", "b300-sxm-288gb")))
NOT_MEASURED = "vCPUs and RAM are extrapolated from its other machines, not measured"
"""Source  onticlabs/skypilot-lyceum README, "The catalog": no endpoint tells a machine's vCPUs and RAM; those with
L40S, A100, H100 and H200 were rented and looked at, those with B200 and B300 were never free."""

NO_PRICE = "no price"
OLD = "older than two years"
NOT_SPOT = "spot price equal to the on-demand price: none was known"
NOT_SOLD = "a count, or a kind, the provider does not sell"
GUESSED = "form factor guessed by the list, and no other list tells which the provider has"
NOT_SAID = "form factor not said: the slower one is assumed"
"""Not a reason to leave it out: a price of a provider's own list, of which no other list tells either. The slower card
is the floor: with the faster one a run is shorter and costs less."""
OUTLIER = "price far off the card's median"
REPLACED = "a newer list of the same provider"
AGAIN = "no region, and another list has the price with one, or newer"


@dataclass(frozen=True)
class Cleaned:
    offers: tuple[Offer, ...]
    kept: int
    """Prices the offers were made of: one of several regions is one offer."""
    dropped: Mapping[str, int]
    """Prices, by reason."""


def cleaned(
    listings: Iterable[Listing], today: date, others: Sequence[Offer] = (), before: Sequence[Offer] = ()
) -> Cleaned:
    """`others`, of other lists, and what this list said `before` are what prices are compared with, where there are
    any: one list alone can have no idea that all of it is cents for dollars."""
    rows = list(listings)
    told = _told(rows)
    dropped: Counter[str] = Counter()
    prices: list[Price] = []
    for listing in rows:
        found, why = _prices(listing, told, today)
        prices += found
        dropped.update(why)
    rules: Sequence[tuple[str, Callable[[Sequence[Price]], set[int]]]] = (
        (OUTLIER, partial(far_off, others=others, before=before)),
        (REPLACED, _replaced),
        (AGAIN, _again),
    )
    for why_not, rule in rules:
        out = rule(prices)
        dropped[why_not] += len(out)
        prices = [each for index, each in enumerate(prices) if index not in out]
    offers = _merged(prices, hosts(rows))
    return Cleaned(tuple(offers), len(prices), {why: n for why, n in dropped.items() if n})


def _prices(listing: Listing, told: Mapping[tuple[str, str], set[str]], today: date) -> tuple[list[Price], list[str]]:
    """What one row offers, and why not the rest of it. A guessed form factor gives way to what the provider has."""
    kind = ON_DEMAND if listing.term_hours is None else RESERVED
    asked = [(kind, listing.usd_per_hour), (SPOT, listing.spot_usd_per_hour)]
    known = [(name, value) for name, value in asked if value is not None]
    if not known:
        return [], [NO_PRICE]
    if today - listing.dated > OLDEST:
        return [], [OLD] * len(known)
    found = card(listing)
    if listing.guessed_form and is_ambiguous(listing.gpu):
        has = told.get((listing.provider, chip(listing.gpu)), set())
        found = found._replace(gpu=min(has) if len(has) == 1 else None, why=GUESSED)
    assumed = ""
    own_list = not listing.via and not listing.guessed_form
    if found.why == NOT_TOLD and own_list and (listing.provider, chip(listing.gpu)) not in told:
        found, assumed = found._replace(gpu=slower(listing)), NOT_SAID
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
            prices.append(Price(listing, name, found.gpu, found.gpus, value, assumed))
    return prices, why


def _told(listings: Iterable[Listing]) -> Mapping[tuple[str, str], set[str]]:
    """The cards of each chip a provider has, by lists that know: old ones tell that too."""
    told: dict[tuple[str, str], set[str]] = defaultdict(set)
    for listing in listings:
        found = None if listing.guessed_form else card(listing).gpu
        if found is not None:
            told[listing.provider, chip(found)].add(found)
    return told


def _replaced(prices: Sequence[Price]) -> set[int]:
    """By a newer list of the same provider, card and kind; a row with a region only by one that has regions too, or
    where is lost. Another count stands where the newer list has the same price a card: only its date is older.
    """
    alike: dict[tuple[str, str, str], list[Price]] = defaultdict(list)
    for each in prices:
        alike[each.listing.provider, each.gpu, each.kind].append(each)
    out = set()
    for index, each in enumerate(prices):
        rivals = [
            other
            for other in alike[each.listing.provider, each.gpu, each.kind]
            if other.listing.dated - each.listing.dated > NEWER and (_placed(other) or not _placed(each))
        ]
        same_count = any(other.gpus == each.gpus for other in rivals)
        if rivals and (same_count or not any(_close(other, each) for other in rivals)):
            out.add(index)
    return out


def _close(one: Price, other: Price) -> bool:
    return abs(one.usd_per_gpu_hour / other.usd_per_gpu_hour - 1) <= SAME


def _again(prices: Sequence[Price]) -> set[int]:
    """Prices without a region that another row has with one, or newer."""
    alike: dict[tuple[str, str, int, str], list[Price]] = defaultdict(list)
    for each in prices:
        alike[each.machine].append(each)
    return {
        index
        for index, each in enumerate(prices)
        if not _placed(each) and any(_says(other, each) for other in alike[each.machine])
    }


def _says(other: Price, each: Price) -> bool:
    one, two = (other.listing.dated, other.listing.source), (each.listing.dated, each.listing.source)
    if _placed(other):
        return _close(other, each) or one[0] >= two[0]
    return _close(other, each) and one > two


def _placed(each: Price) -> bool:
    return bool(each.listing.country)


def _merged(prices: Iterable[Price], known: Mapping[tuple[str, str, int], HostSize]) -> list[Offer]:
    """One offer a distinct price of a machine, with its regions, in a lasting order."""
    alike: dict[tuple[object, ...], list[Price]] = defaultdict(list)
    for each in prices:
        row = each.listing
        alike[*each.machine, each.usd_per_hour, row.instance, row.via, row.source, row.term_hours].append(each)
    return sorted((_offer(each, known) for each in alike.values()), key=order)


def order(offer: Offer) -> tuple[str, str, int, str, float, str, tuple[str, ...]]:
    return offer.provider, offer.gpu, offer.gpus, offer.kind, offer.usd_per_hour, offer.instance, offer.regions


def _offer(prices: Sequence[Price], known: Mapping[tuple[str, str, int], HostSize]) -> Offer:
    first = prices[0]
    row = first.listing
    vcpus, ram_gib = row.vcpus, row.ram_gib
    if vcpus is None and ram_gib is None:
        vcpus, ram_gib = known.get((row.provider, chip(first.gpu), first.gpus), HostSize())
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
        vcpus=vcpus,
        ram_bytes=_ram_bytes(ram_gib),
        max_nodes=1 if provider(row.provider).joins_nodes is False else None,
        via=row.via,
        term_hours=row.term_hours,
        disk_bytes=_disk_bytes(row.disk_gb),
        tenancy="dedicated" if row.instance.startswith(BARE_METAL) else "",
        assumed=first.assumed or (NOT_MEASURED if (row.provider, first.gpu) in UNMEASURED_HOSTS else ""),
    )


def _disk_bytes(gb: float | None) -> int | None:
    return round(gb * GB) if gb is not None and 1 <= gb <= MOST_DISK_GB else None


def _ram_bytes(gib: float | None) -> int | None:
    """None for what no machine has."""
    return round(gib * GIB) if gib is not None and 1 <= gib <= MOST_RAM_GIB else None
