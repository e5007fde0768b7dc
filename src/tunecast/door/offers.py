"""What machines with GPUs cost, and whether one is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Unpack

from tunecast.door.filters import FilterOptions, filters_of, with_defaults
from tunecast.errors import DoesNotFit, UsageError, nearest_hint
from tunecast.hardware.catalog import gpus
from tunecast.market import store
from tunecast.market.availability import Availability, availability, doors
from tunecast.market.filters import Filters, Matches, matching
from tunecast.market.listed import Offers
from tunecast.market.offer import SPOT, Offer
from tunecast.market.outliers import outliers
from tunecast.records import replace


class OfferOptions(FilterOptions, total=False):
    spot: bool
    """As `kind="spot"`."""
    no_spot: bool
    max_usd: float | None
    """Per hour, of the machine."""
    max_age: int | None
    """Days."""


def offers(*words: str, available: bool = False, **options: Unpack[OfferOptions]) -> Offers:
    """What matches, the cheapest GPU-hour first; `words` of a card, provider, machine or region narrow it down too.

    `available`: providers that answer without an account are asked whether one is free. Raises `DoesNotFit` where
    nothing matches.
    """
    wanted, today, known = filters_from(words, options), date.today(), store.offers()
    matches = matching(known, wanted, today)
    if not matches.offers:
        raise _nothing(known, wanted, matches)
    found = matches.offers
    return Offers(found, today, matches.unknown, outliers(found, known), stock_of(found) if available else {})


def filters_from(words: Iterable[str], options: OfferOptions) -> Filters:
    every = with_defaults("offers", options, OfferOptions.__annotations__)
    return replace(
        filters_of(every),
        words=tuple(word for text in words for word in text[:80].lower().split()),
        kinds=every["kind"] or ((SPOT,) if every["spot"] else ()),
        no_spot=bool(every["no_spot"]),
        max_usd_per_hour=every["max_usd"],
        max_age_days=every["max_age"],
    )


def stock_of(found: Iterable[Offer]) -> Mapping[Offer, Availability]:
    """What providers answer, whether one of each is free now."""
    return availability(found, datetime.now(UTC), doors())


def _nothing(known: tuple[Offer, ...], wanted: Filters, matches: Matches) -> UsageError | DoesNotFit:
    """A word that names nothing is wrong usage; words that name something nobody offers is nothing found."""
    names = {name for offer in known for name in (offer.provider, offer.gpu)} | set(gpus())
    told = {f"{offer.gpu} {offer.provider} {offer.instance}".lower() for offer in known}
    for word in wanted.words:
        if not any(word in text for text in (*told, *names)):
            hint = nearest_hint(word, sorted(names))
            return UsageError(f"TEXT: got {word!r}, which matches nothing{hint}", field="TEXT")
    unknown = "".join(f"; {n} left out: {why}" for why, n in matches.unknown.items())
    last = f"; {matches.cut} leaves none" if matches.cut else ""
    return DoesNotFit(f"no offer matches all of that{last}{unknown}")
