"""Which offers a plan may pick, and which stand beside its picks.

    signable     on demand from a company one has a contract with, or one's own: what is picked unless more is asked for
    beside       spot, marketplace, reserved: lines of their own, or picked where asked for (--spot, …)
    unproven     whose country, law or certificate nobody at hand proves: what they would cost is said, by provider
    left out     too old (counted from the newest list), or an outlier, which is named

Source  of the ages: in the lists at hand an on-demand price moved by 30 % within 106 days (DigitalOcean's H100), spot
        prices move within hours; 30 days keep one snapshot of a list beside the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date

from tunecast.market.filters import Filters, matching
from tunecast.market.offer import OWNED, RESERVED, SPOT, Offer
from tunecast.market.outliers import outliers
from tunecast.market.provider import SHARED_CARD, provider, tenancy

ON_DEMAND_DAYS, SPOT_DAYS = 180, 30
MARKETPLACE = "marketplace"
BESIDE = (SPOT, MARKETPLACE, RESERVED)
"""What is not picked unasked."""


@dataclass(frozen=True)
class Rules:
    """What may be picked beside what one can sign for, and how old a price may be."""

    allow: frozenset[str] = frozenset()
    """Of `BESIDE`."""
    show: frozenset[str] = frozenset(BESIDE)
    """Of `BESIDE`: what gets a line of its own where it is not allowed."""
    max_age_days: int | None = None
    """None: 180 days on demand and reserved, 30 spot."""

    def days(self, kind: str) -> int:
        if self.max_age_days is not None:
            return self.max_age_days
        return SPOT_DAYS if kind == SPOT else ON_DEMAND_DAYS


@dataclass(frozen=True)
class Selection:
    offers: tuple[Offer, ...]
    """What may be picked, the cheapest card-hour first."""
    beside: Mapping[str, tuple[Offer, ...]] = field(default_factory=dict)
    """By the names of `BESIDE`: the same filters hold."""
    unproven: Mapping[str, tuple[Offer, ...]] = field(default_factory=dict)
    """By provider: they keep to all else, but one of the filters cannot be proven for them."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """What is not known of those, by provider."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """How many are unproven, by what is not known."""
    outliers: Mapping[Offer, str] = field(default_factory=dict)
    """Left out for their price, with the reason."""
    old: int = 0
    """Left out for their age."""
    listed: date | None = None
    """The day of the newest list."""
    cut: str = ""
    """The flag that left none, where one did."""


def select(
    offers: Iterable[Offer], filters: Filters, rules: Rules, day: date, own: frozenset[Offer] = frozenset()
) -> Selection:
    """`own`: prices the user added, which are neither too old nor outliers. Prices seen after `day` do not count.

    Raises `UsageError` for a card, provider or link that is not known.
    """
    known = [offer for offer in offers if offer in own or offer.dated <= day]
    listed = max((offer.dated for offer in known if offer not in own), default=None)
    fresh = [offer for offer in known if offer in own or is_fresh(offer, rules, listed)]
    far_off = {_anywhere(offer): why for offer, why in outliers(fresh).items() if offer not in own}
    left = matching(fresh, filters, day)
    odd = {offer: far_off[bare] for offer in left.offers if (bare := _anywhere(offer)) in far_off}
    named = frozenset(filters.providers)
    picked: list[Offer] = []
    beside: dict[str, list[Offer]] = {name: [] for name in BESIDE if name in rules.show}
    for offer in (offer for offer in left.offers if offer not in odd):
        sort = sort_of(offer, own, named)
        if sort <= rules.allow:
            picked.append(offer)
        elif len(sort - rules.allow) == 1 and (name := next(iter(sort - rules.allow))) in beside:
            beside[name].append(offer)
    unproven: dict[str, list[Offer]] = {}
    doubts: dict[str, str] = {}
    for offer, why in left.unproven:
        if _anywhere(offer) not in far_off and sort_of(offer, own, named) <= rules.allow:
            unproven.setdefault(offer.provider, []).append(offer)
            doubts.setdefault(offer.provider, why)
    return Selection(
        tuple(picked),
        {name: tuple(of) for name, of in beside.items() if of},
        {name: tuple(of) for name, of in unproven.items()},
        doubts,
        left.unknown,
        odd,
        len(known) - len(fresh),
        listed,
        left.cut if not left.offers else "on demand, from companies with a contract" if not picked else "",
    )


def is_fresh(offer: Offer, rules: Rules, listed: date | None) -> bool:
    if offer.kind == OWNED or listed is None:
        return True
    return (listed - offer.dated).days <= rules.days(offer.kind)


def sort_of(offer: Offer, own: frozenset[Offer] = frozenset(), named: frozenset[str] = frozenset()) -> frozenset[str]:
    """What keeps an offer from being signed for just so, of `BESIDE`; nothing where nothing does. On a card that others
    use at the same time no prediction holds.

    A provider the user names, or whose price the user added, is one the user wants.
    """
    found = set()
    if offer.kind in (SPOT, RESERVED):
        found.add(offer.kind)
    wanted = offer in own or offer.kind == OWNED or offer.provider in named
    if not wanted and (not has_contract(offer) or tenancy(offer) == SHARED_CARD):
        found.add(MARKETPLACE)
    return frozenset(found)


def has_contract(offer: Offer) -> bool:
    """Whether who runs the machine, and who sells it, are companies on record that answer for it."""
    parties = [provider(name) for name in (offer.provider, offer.via) if name]
    return all(party.entity and not party.marketplace for party in parties)


def _anywhere(offer: Offer) -> Offer:
    """Without its regions, which filters by country narrow down."""
    return replace(offer, regions=(), countries=())
