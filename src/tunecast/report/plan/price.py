"""What a job costs on its own machines, in words. Pure: a `Rent` in, strings out."""

from __future__ import annotations

from tunecast.market.offer import OWNED
from tunecast.planning.choice import DOLLARS, Money
from tunecast.planning.price import Rent
from tunecast.report.draw.figures import shown
from tunecast.report.plan.words import amount, hourly, kind, seller, with_range


def cost_words(rent: Rent, money: Money = DOLLARS) -> str:
    """`$8.23 (6.51 to 11.54)` of a whole run; `$0.27 per million tokens`, or an hour's price, where its length is not
    known."""
    if rent.bill is not None:
        return with_range(rent.bill.cost.total_usd, rent.bill.usd_range, money)
    if rent.usd_per_million_tokens is not None:
        return f"{amount(rent.usd_per_million_tokens, money)} per million tokens"
    return hourly(rent.usd_per_hour, money)


def offer_words(rent: Rent, money: Money = DOLLARS) -> str:
    """`1 x h100-sxm-80gb at runpod, on demand, $3.29 per hour (price of 2026-08-22)`."""
    offer = rent.fleet.offer
    machines = rent.fleet.hardware
    if offer.kind == OWNED:
        return shown(f"{machines}, your own, {hourly(rent.usd_per_hour, money)} of electricity")
    price = f"{hourly(rent.usd_per_hour, money)} (price of {offer.dated})"
    return shown(f"{machines} at {seller(offer)}, {kind(offer)}, {price}")


def rent_words(rent: Rent, money: Money = DOLLARS) -> str:
    """`$8.23 (6.51 to 11.54) for the whole run on 1 x h100-sxm-80gb at runpod, on demand, $3.29 per hour (price of
    2026-08-22)`."""
    what = f"{cost_words(rent, money)}{'' if rent.bill is None else ' for the whole run'}"
    return f"{what} on {offer_words(rent, money)}"
