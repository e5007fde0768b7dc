"""Prices too low to count on, and why."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from tunecast.market.offer import Offer
from tunecast.market.outliers import OWN_SHARE, PEER_SHARE, outliers, own_price
from tunecast.market.store import bundled

DAY = date(2026, 8, 22)


def offer(provider="p", kind="on-demand", usd=4.0, gpus=1, **more):
    return Offer(provider, kind, "l40s", gpus, usd, DAY, **{"source": "skypilot/p", "instance": "big", **more})


def test_a_spot_price_below_a_fifth_of_its_own_price_on_demand():
    dear, cheap, fair = offer(), offer(kind="spot", usd=0.68), offer(kind="spot", usd=0.8)
    assert outliers([dear, cheap, fair]) == {cheap: "17 % of its own on-demand price of 4.00 USD per hour"}


def test_it_is_compared_with_the_same_machine_in_the_same_region_first():
    here, there = offer(usd=2.0, regions=("a",), countries=("DE",)), offer(usd=9.0, regions=("b",), countries=("US",))
    spot = offer(kind="spot", usd=0.5, regions=("a",), countries=("DE",))
    assert own_price(spot, [here, there]) == 2.0
    assert outliers([here, there, spot]) == {}
    assert own_price(replace(spot, regions=("c",)), [here, there]) == 5.5
    # another machine of the same card stands for it where its own is not on demand: two cards at 2.00
    assert own_price(replace(spot, instance="other", gpus=2, usd_per_hour=1.0), [here]) == 4.0


@pytest.mark.parametrize(("usd", "far"), [(1.32, True), (1.34, False)])
def test_a_price_below_a_third_of_its_peers(usd, far):
    """Medians of 3, 4 and 5 USD: a third of 4."""
    peers = [offer(name, usd=price) for name, price in (("a", 3.0), ("b", 4.0), ("c", 5.0))]
    many = [offer("b", usd=4.0, instance=str(n)) for n in range(9)]  # one provider is one voice
    cheap = offer("q", usd=usd)
    expected = {cheap: "33 % of the median of 3 other providers' on-demand prices for the card"} if far else {}
    assert outliers([*peers, *many, cheap]) == expected


def test_two_peers_are_too_few():
    assert outliers([offer("a"), offer("b"), offer("q", usd=0.1)]) == {}


def test_what_a_broker_sells_is_not_compared_with_the_makers_own_price():
    assert outliers([offer(usd=10.0), offer(kind="spot", usd=1.0, via="broker")]) == {}


def test_ones_own_price_is_ones_own_to_judge():
    peers = [offer(name) for name in "abc"]
    assert outliers([*peers, offer("mine", usd=0.1, source="own")]) == {}
    assert outliers([*peers, offer("lab", kind="owned", usd=0.1)]) == {}
    assert outliers([*peers, offer("q", kind="reserved", usd=0.1, term_hours=8760.0)]) == {}


def test_among_others():
    assert set(outliers([offer(kind="spot", usd=0.4)], among=[offer()])) == {offer(kind="spot", usd=0.4)}


def test_the_catalogues_own():
    found = outliers(bundled())
    told = {(each.provider, each.gpu, each.gpus, each.kind, each.usd_per_hour): why for each, why in found.items()}
    vast = told["vast.ai", "h100-pcie-80gb", 2, "spot", 0.6826]
    assert vast == "17 % of its own on-demand price of 4.00 USD per hour"
    google = [why for key, why in told.items() if key[:2] == ("gcp", "h100-sxm-80gb")]
    assert sum(why.startswith("9 %") for why in google) == 8
    assert told["vast.ai", "a100-sxm-80gb", 1, "on-demand", 0.7348].startswith(
        "26 % of the median of 13 other providers'"
    )
    # what is signed for is hardly touched: on demand, from others than Vast.ai, nothing
    assert {each.provider for each in found if each.kind == "on-demand"} == {"vast.ai"}
    assert len(found) < 0.06 * len(bundled())


def test_the_shares_are_ordered_as_their_causes_say():
    assert 0.1 < OWN_SHARE < PEER_SHARE < 0.5
