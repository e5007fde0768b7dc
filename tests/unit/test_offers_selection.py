"""Which offers a plan may pick, and which only stand beside it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from tunecast.market.filters import Filters
from tunecast.market.offer import Offer
from tunecast.market.selection import ON_DEMAND_DAYS, SPOT_DAYS, Rules, Selection, has_contract, select, sort_of

LISTED = date(2026, 8, 22)
TODAY = date(2026, 11, 15)
PLAIN, ANY = Rules(), Filters()


def offer(provider: str = "lambda", kind: str = "on-demand", usd: float = 3.0, days: int = 0, **more: Any) -> Offer:
    dated = LISTED - timedelta(days=days)
    return Offer(provider, kind, "h100-sxm-80gb", 1, usd, dated, "skypilot/x", ("r",), ("US",), **more)


def chosen(offers: list[Offer], rules: Rules = PLAIN, filters: Filters = ANY, **more: Any) -> Selection:
    return select(offers, filters, rules, TODAY, **more)


def test_on_demand_from_a_company_is_picked_and_the_rest_stands_beside() -> None:
    plain, spot, market = offer(), offer("verda", "spot", 2.0), offer("vast.ai", usd=2.5)
    reserved = offer("runpod", "reserved", 2.2, term_hours=8760.0)
    left = chosen([plain, spot, market, reserved])
    assert left.offers == (plain,)
    assert left.beside == {"spot": (spot,), "marketplace": (market,), "reserved": (reserved,)}
    every = chosen([plain, spot, market, reserved], Rules(frozenset({"spot", "marketplace", "reserved"})))
    assert set(every.offers) == {plain, spot, market, reserved} and not any(every.beside.values())


def test_what_needs_two_permissions_is_no_line_of_one() -> None:
    bid = offer("vast.ai", "spot", 1.5)
    assert not any(chosen([offer(), bid]).beside.values())
    assert chosen([offer(), bid], Rules(frozenset({"spot"}))).beside == {"marketplace": (bid,)}


def test_a_provider_that_is_named_is_wanted_and_so_is_a_price_of_ones_own() -> None:
    market, own = offer("vast.ai"), offer("lab-next-door", days=900)
    assert chosen([market], filters=Filters(providers=("vast.ai",))).offers == (market,)
    assert set(chosen([offer(), own], own=frozenset({own})).offers) == {offer(), own}
    assert sort_of(offer("nobody-knows")) == {"marketplace"}


@pytest.mark.parametrize(("kind", "most"), [("on-demand", ON_DEMAND_DAYS), ("spot", SPOT_DAYS)])
def test_ages_count_from_the_newest_list(kind: str, most: int) -> None:
    newest = offer("lambda")
    kept, old = offer("verda", kind, days=most), offer("nebius", kind, days=most + 1)
    rules = Rules(frozenset({"spot"}))
    left = chosen([newest, kept, old], rules)
    assert set(left.offers) == {newest, kept}
    assert (left.old, left.listed) == (1, LISTED)
    assert set(chosen([newest, kept, old], replace(rules, max_age_days=most + 1)).offers) == {newest, kept, old}


def test_a_day_in_the_past_knows_no_later_price() -> None:
    early = offer(days=40)
    assert select([early, offer("verda")], ANY, PLAIN, LISTED - timedelta(days=10)).offers == (early,)


def test_an_outlier_is_named_and_not_picked() -> None:
    peers = [offer(name, usd=3.0) for name in ("lambda", "nebius", "verda", "runpod")]
    cheap = offer("hyperstack", usd=0.5)
    left = chosen([*peers, cheap])
    assert cheap not in left.offers
    assert "17 % of the median" in left.outliers[cheap]


def test_what_cannot_be_proven_is_told_by_provider() -> None:
    here = replace(offer("verda"), regions=("FIN-01",), countries=("FI",))
    unplaced = replace(offer("lyceum"), regions=("eu",), countries=("",))
    left = chosen([here, unplaced, offer()], filters=Filters(eu=True))
    assert left.offers == (here,)
    assert left.unproven == {"lyceum": (unplaced,)}
    assert "EU" in left.doubts["lyceum"]


def test_a_card_shared_with_others_is_not_picked_unasked() -> None:
    assert not sort_of(offer("lambda"))
    assert has_contract(offer("packetai"))
    assert sort_of(offer("packetai")) == {"marketplace"}


def test_a_broker_needs_a_contract_too() -> None:
    assert has_contract(offer("scaleway", via="shadeform"))
    assert not has_contract(offer("dc_wildebeest", via="primeintellect"))
