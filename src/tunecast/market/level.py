"""Whether a price is on the level of the others for the card: what is far off is mistyped, or of a slice of a card, or
a whole list in another unit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from tunecast.market.listing import Listing
from tunecast.market.offer import ON_DEMAND, SPOT, Offer
from tunecast.records import NamedTuple

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
