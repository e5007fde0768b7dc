"""Where an offer stands and whose law reaches it: three answers, and unknown is one of them."""

from __future__ import annotations

from datetime import date

import pytest

from tunecast.errors import UsageError
from tunecast.market.jurisdiction import EEA, EU27, area, beyond_us_law, country, exposure, in_eu, narrowed, stands_in
from tunecast.market.offer import Offer
from tunecast.market.provider import EXPOSURES, provider, providers


def offer(name="verda", places=(), placed="proven", via="", kind="on-demand"):
    regions = tuple(f"r{n}" for n, _ in enumerate(places))
    return Offer(name, kind, "l40s", 1, 1.0, date(2026, 11, 1), "test", regions, tuple(places), placed, via=via)


def test_the_lists():
    assert len(EU27) == 27
    assert {"IS", "LI", "NO"} == EEA - EU27
    assert not {"GB", "CH", "NO", "RS", "UA", "TR"} & EU27


@pytest.mark.parametrize(
    ("places", "placed", "answer"),
    [
        (("DE",), "proven", "yes"),
        (("US", "FI"), "proven", "yes"),
        (("US",), "proven", "no"),
        (("NO", "CH", "GB"), "proven", "no"),
        ((), "proven", "unknown"),
        (("",), "proven", "unknown"),
        (("US", ""), "proven", "unknown"),
        (("DE", "US"), "listed", "unknown"),
        (("US", "JP"), "listed", "no"),
    ],
)
def test_in_the_eu(places, placed, answer):
    assert in_eu(offer(places=places, placed=placed)) == answer


def test_a_country():
    assert stands_in(offer(places=("FI", "FR")), {"FR"}) == "yes"
    assert stands_in(offer(places=("FI",)), {"FR"}) == "no"


def test_narrowed_to_where_it_was_asked_for():
    it = narrowed(offer(places=("US", "FI", "DE")), EU27)
    assert (it.regions, it.countries) == (("r1", "r2"), ("FI", "DE"))
    assert narrowed(offer(places=("US",)), EU27).regions == ()


def test_areas_are_named_apart():
    assert [area(name) for name in ("DE", "NO", "CH", "GB", "US")] == ["EU", "EEA", "CH", "GB", "US"]


def test_names_of_countries():
    assert [country(name) for name in ("DE", "deu", "Germany", "LI", "uk")] == ["DE", "DE", "DE", "LI", "GB"]
    with pytest.raises(UsageError, match="--country"):
        country("Atlantis")


@pytest.mark.parametrize(
    ("name", "via", "level", "answer"),
    [
        ("aws", "", "us-controlled", "no"),
        ("nebius", "", "eu-seat-us-nexus", "unknown"),
        ("verda", "", "no-known-us-parent", "yes"),
        ("scaleway", "", "no-known-us-parent", "yes"),
        ("scaleway", "shadeform", "us-controlled", "no"),  # the broker is a US company
        ("civo", "", "no-known-us-parent", "unknown"),  # nobody looked who owns it
        ("alibaba", "", "other-law", "unknown"),
        ("never-heard-of", "", "unknown", "unknown"),
        ("verda", "never-heard-of", "unknown", "unknown"),
    ],
)
def test_never_more_than_the_source_says(name, via, level, answer):
    it = offer(name, via=via)
    assert exposure(it) == level
    assert beyond_us_law(it) == answer


def test_ones_own_machine_is_ones_own():
    assert exposure(offer("lab", kind="owned")) == "own"


def test_an_unknown_provider_is_no_error_and_nothing_is_known_of_it():
    nobody = provider("never-heard-of")
    assert nobody.exposure == "unknown"
    assert nobody.billing_step_s is None
    assert nobody.certificates == ()


def test_levels_have_an_order():
    assert {each.exposure for each in providers().values()} <= set(EXPOSURES)
    assert EXPOSURES[-1] == "us-controlled"
