"""Prices too low to count on, named with the reason: they stay in the catalogue, and a plan leaves them out.

Two tests, of prices of lists only (a price of one's own is one's own to judge):

    spot          below a fifth of the provider's own price on demand, of the same machine where it is there
    any           below a third of its peers: the median over the other providers of their medians, same card and kind

What lies there is the least bid of one machine, the floor of a region nobody rents in, or a mistake. Whoever plans with
it finds it gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from tunecast.market.offer import ON_DEMAND, SPOT, Offer
from tunecast.market.store import is_listed
from tunecast.units import percent

OWN_SHARE = 0.2
"""Of the price on demand. The three large clouds announce discounts of up to 90 or 91 %, and in the catalogue of
2026-11-15 their cheapest spot prices are just that (0.09 to 0.12: Google's H100 in Finland and Australia, AWS's T4 and
RTX PRO 6000 in five regions). 32 of 548 lie below a fifth, and in Azure's list of 2024, which is not among these, 36 of
43."""
PEER_SHARE = 1 / 3
"""Of the peers' median. In that catalogue 3 of 606 prices on demand lie below, all of Vast.ai, and 2 of 222 on spot."""
LEAST_PEERS = 3
"""Other providers with the card: the median of fewer says little."""


def outliers(offers: Iterable[Offer], among: Iterable[Offer] | None = None) -> Mapping[Offer, str]:
    """Which of them are too cheap, and why, in words; compared with the prices `among` (else with one another)."""
    judged = list(offers)
    listed = [offer for offer in (judged if among is None else among) if is_listed(offer)]
    on_demand: dict[tuple[str, str, str], list[Offer]] = defaultdict(list)
    sellers: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for offer in listed:
        sellers[offer.gpu, offer.kind][offer.provider].append(offer.usd_per_gpu_hour)
        if offer.kind == ON_DEMAND:
            on_demand[offer.provider, offer.via, offer.gpu].append(offer)
    usual = {key: {name: median(of) for name, of in found.items()} for key, found in sellers.items()}
    reasons = {}
    for offer in judged:
        if not is_listed(offer) or offer.kind not in (ON_DEMAND, SPOT):
            continue
        own = on_demand.get((offer.provider, offer.via, offer.gpu), ()) if offer.kind == SPOT else ()
        reason = _below_own(offer, own) or _below_peers(offer, usual.get((offer.gpu, offer.kind), {}))
        if reason:
            reasons[offer] = reason
    return reasons


def _below_own(offer: Offer, on_demand: Sequence[Offer]) -> str:
    if not on_demand:
        return ""
    price = own_price(offer, on_demand)
    share = offer.usd_per_hour / price
    return f"{percent(share)} of its own on-demand price of {price:.2f} USD per hour" if share < OWN_SHARE else ""


def own_price(offer: Offer, on_demand: Sequence[Offer]) -> float:
    """Of as many cards an hour: of the same machine in the same region, else of the same machine, else of the card."""
    same = [each for each in on_demand if (each.instance, each.gpus) == (offer.instance, offer.gpus)]
    here = [each for each in same if not set(each.regions).isdisjoint(offer.regions)]
    return offer.gpus * median(each.usd_per_gpu_hour for each in here or same or on_demand)


def _below_peers(offer: Offer, usual: Mapping[str, float]) -> str:
    others = [price for name, price in usual.items() if name != offer.provider]
    if len(others) < LEAST_PEERS:
        return ""
    share = offer.usd_per_gpu_hour / median(others)
    named = f"the median of {len(others)} other providers' {offer.kind} prices for the card"
    return f"{percent(share)} of {named}" if share < PEER_SHARE else ""
