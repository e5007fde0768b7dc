"""`tunecast offers update`: newer prices, where there is a network. What cannot be trusted leaves the old data whole.

    list by list: fetched (bounded in bytes and seconds, and all of them together in seconds) ► read ► cleaned, its
                  prices compared with the other lists' and with its own of before ► kept if it is not suddenly half as
                  long, and most of its prices are near
    then all of them written at once, or nothing

TUNECAST_SKYPILOT_CATALOG and TUNECAST_GPUHUNT_CATALOG name mirrors of the two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

from tunecast.errors import NotResolved
from tunecast.market import store
from tunecast.market.clean import FAR, OUTLIER, cleaned
from tunecast.market.listing import Listing
from tunecast.market.offer import Offer
from tunecast.market.sources import gpuhunt, skypilot
from tunecast.market.sources.replies import address
from tunecast.records import NamedTuple
from tunecast.units import MIB

SKYPILOT = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8"
GPUHUNT = "https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com/v2"
TIMEOUT_S = 30.0
WHOLE_S = 180.0
"""For all lists together, however slow the servers: they are some ten megabytes, so half a megabit a second will do."""
MOST_BYTES = 32 * MIB
"""The longest list at hand, SkyPilot's of AWS, has four megabytes."""
LEAST_SHARE = 0.5
"""Of the offers there were of the list it replaces (of skypilot/azure for gpuhunt/azure): with fewer it was cut off, or
changed beyond reading."""
MOST_FAR_SHARE = 0.5
"""Of the prices that could be taken: with more of them far off the others, the list is in another unit, or a lie."""


class Feeds(NamedTuple):
    skypilot: str = SKYPILOT
    gpuhunt: str = GPUHUNT
    timeout_s: float = TIMEOUT_S
    whole_s: float = WHOLE_S


class ListUpdate(NamedTuple):
    source: str
    offers: int
    """That the list now has; 0 where it was not taken."""
    before: int
    why: str = ""
    """Why it was not taken."""
    dropped: int = 0
    """Prices the rules of clean.py left out."""
    far_off: int = 0
    """Of these the ones far off the other lists' prices, or its own of before."""


@dataclass(frozen=True)
class Updated:
    outcomes: tuple[ListUpdate, ...]
    path: Path | None
    """None where nothing was written."""


Fetch = Callable[[str, float], bytes]


def feeds(environ: Mapping[str, str] = os.environ) -> Feeds:
    return Feeds(
        address(environ, "TUNECAST_SKYPILOT_CATALOG", SKYPILOT).rstrip("/"),
        address(environ, "TUNECAST_GPUHUNT_CATALOG", GPUHUNT).rstrip("/"),
    )


def update(
    today: date,
    where: Feeds,
    environ: Mapping[str, str] = os.environ,
    fetch: Fetch | None = None,
    begins: Callable[[str], None] = lambda source: None,
) -> Updated:
    """Raises `NotResolved` only where the user's own folder cannot be read or written. `begins` is told each list."""
    ask = within(where.whole_s, fetch or fetch_list)
    old = store.kept(store.FETCHED, environ)
    known = store.with_fetched(old)
    taken: dict[str, tuple[Offer, ...]] = {}
    outcomes = []
    for source, read in _lists(where, today, ask):
        begins(source)
        before = [offer for offer in known if store.list_name(offer.source) == store.list_name(source)]
        others = [offer for offer in known if store.list_name(offer.source) != store.list_name(source)]
        had = len(before)
        try:
            found = cleaned(read(), today, others, before)
        except NotResolved as error:
            outcomes.append(ListUpdate(source, 0, had, error.message))
            continue
        far_off = found.dropped.get(OUTLIER, 0)
        why = _refusal(len(found.offers), had, found.kept, far_off)
        if why:
            outcomes.append(ListUpdate(source, 0, had, why))
            continue
        taken[source] = found.offers
        outcomes.append(ListUpdate(source, len(found.offers), had, "", sum(found.dropped.values()), far_off))
    path = None
    if taken:
        rest = (offer for offer in old if offer.source not in taken)
        path = store.keep(store.FETCHED, (*rest, *(offer for rows in taken.values() for offer in rows)), environ)
    return Updated(tuple(outcomes), path)


def within(whole_s: float, ask: Fetch) -> Fetch:
    """The same with one end for all that is asked. A reply is waited for twice its timeout at most (job/fetch.py)."""
    ends_s = time.monotonic() + whole_s

    def bounded(url: str, timeout_s: float) -> bytes:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            raise NotResolved(f"not asked for: those before it took the {whole_s:.0f} s there are for all lists")
        return ask(url, min(timeout_s, left_s / 2))

    return bounded


def _refusal(offers: int, had: int, prices: int, far_off: int) -> str:
    """Why a list is not taken; '' where it is."""
    if far_off > MOST_FAR_SHARE * (prices + far_off):
        most = f"{far_off} of its {prices + far_off} prices are more than {FAR:g} times off the other lists'"
        return f"{most}, or its own of before. If they are right, tunecast offers add takes them as your own"
    if offers < max(1, LEAST_SHARE * had):
        return f"{offers} offers, where there were {had}: cut off, or no longer what it was"
    return ""


def fetch_list(url: str, timeout_s: float) -> bytes:
    """Raises `NotResolved`. The one place that reaches the network."""
    from tunecast.job.fetch import content_of

    return content_of(url, MOST_BYTES, timeout_s)


def _lists(where: Feeds, today: date, ask: Fetch) -> Iterator[tuple[str, Callable[[], list[Listing]]]]:
    """Every list, with what reads it: asked for one after the other, so that one that fails stops no other."""
    for cloud in skypilot.CLOUDS:
        yield f"skypilot/{cloud}", partial(_skypilot, where, cloud, today, ask)
    archive: list[tuple[bytes, date]] = []
    for name in gpuhunt.PROVIDERS:
        yield f"gpuhunt/{name}", partial(_gpuhunt, where, name, today, ask, archive)


def _skypilot(where: Feeds, cloud: str, today: date, ask: Fetch) -> list[Listing]:
    return skypilot.listings(ask(f"{where.skypilot}/{cloud}/vms.csv", where.timeout_s), cloud, today)


def _gpuhunt(where: Feeds, name: str, today: date, ask: Fetch, archive: list[tuple[bytes, date]]) -> list[Listing]:
    """The archive is fetched once, for the first that asks."""
    if not archive:
        number, made = gpuhunt.version(ask(f"{where.gpuhunt}/version", where.timeout_s))
        if made > today:
            made = today  # no price is from tomorrow
        archive.append((ask(f"{where.gpuhunt}/{number}/catalog.zip", where.timeout_s), made))
    content, made = archive[0]
    return gpuhunt.listings(gpuhunt.member(content, name), name, made)
