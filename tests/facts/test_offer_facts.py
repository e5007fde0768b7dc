"""The bundled offers and providers: a source and a day for each, and figures that can be true."""

from __future__ import annotations

import csv
import re
import tomllib
from collections import defaultdict
from datetime import date
from importlib.resources import files
from pathlib import Path
from statistics import median

import pytest

from tunecast.hardware.catalog import gpus
from tunecast.hardware.grids import grid
from tunecast.market.clean import FAR, OLDEST
from tunecast.market.jurisdiction import EU27, beyond_us_law, in_eu, told
from tunecast.market.names import _rules
from tunecast.market.offer import KINDS, PLACED
from tunecast.market.provider import EXPOSURES, FACTS, SHARED_CARD, TENANCIES, providers
from tunecast.market.store import bundled, sources

CHECKED = date(2026, 11, 15)
TABLE = tomllib.loads((files("tunecast.market") / "providers.toml").read_text("utf-8"))
REGIONS = list(csv.DictReader((files("tunecast.market") / "catalog" / "regions.csv").read_text("utf-8").splitlines()))


def test_every_row_has_a_source_a_day_and_a_card():
    for offer in bundled():
        assert offer.source in sources(), offer
        assert offer.gpu in gpus(), offer
        assert CHECKED - OLDEST <= offer.dated <= CHECKED, offer
        assert offer.kind in KINDS
        assert offer.placed in PLACED
        assert 1 <= offer.gpus <= 16
        assert (offer.kind == "reserved") == (offer.term_hours is not None)


def test_every_price_can_be_true():
    for offer in bundled():
        assert 0.05 < offer.usd_per_gpu_hour < 30, offer


def test_no_price_is_far_off_the_others_of_its_card():
    by_card = defaultdict(lambda: defaultdict(list))
    for offer in bundled():
        by_card[offer.gpu, offer.kind][offer.provider].append(offer.usd_per_gpu_hour)
    for card, sellers in by_card.items():
        usual = median(median(of) for of in sellers.values())
        for name, of in sellers.items():
            assert usual / FAR * 0.8 <= min(of) <= max(of) <= usual * FAR * 1.2, (card, name)


def test_every_country_is_one():
    for offer in bundled():
        assert len(offer.regions) == len(offer.countries)
        for country in offer.known_countries:
            assert grid(country).country == country


def test_spot_is_cheaper_than_on_demand():
    prices = {
        (offer.provider, offer.instance, region, offer.via): offer.usd_per_hour
        for offer in bundled() if offer.kind == "on-demand" and offer.instance for region in offer.regions
    }  # fmt: skip
    compared = 0
    for offer in bundled():
        for region in offer.regions if offer.kind == "spot" and offer.instance else ():
            price = prices.get((offer.provider, offer.instance, region, offer.via))
            if price is not None:
                compared += 1
                assert offer.usd_per_hour < price, offer
    assert compared > 400


def test_the_traps_are_not_in_it():
    offers = bundled()
    assert not [each for each in offers if each.provider == "runpod" and each.kind == "spot"]
    assert {each.placed for each in offers if each.provider in ("runpod", "lambda") and not each.via} == {"listed"}
    nd96 = [each for each in offers if each.instance == "Standard_ND96isr_H100_v5"]
    assert nd96
    assert {each.gpus for each in nd96} == {8}
    assert all(in_eu(each) == "no" for each in offers if each.provider == "azure" and each.regions)
    assert not [each for each in offers if each.provider == "vultr" and each.gpu == "a100-pcie-80gb" and each.gpus > 1]
    assert all(in_eu(each) == "unknown" for each in offers if each.provider == "lyceum")


def test_there_is_something_to_choose_from():
    offers = bundled()
    assert len(offers) == 1450
    assert len({each.provider for each in offers}) == 37
    assert {each.kind for each in offers} == {"on-demand", "spot", "reserved"}
    for card in (
        "rtx-4090",
        "l4",
        "l40s",
        "a100-sxm-80gb",
        "h100-sxm-80gb",
        "h200-sxm-141gb",
        "b200-sxm-180gb",
        "mi300x",
    ):
        assert len({each.provider for each in offers if each.gpu == card}) >= 2, card
    sovereign = [each for each in offers if in_eu(each) == "yes" and beyond_us_law(each) == "yes"]
    assert {"verda", "seeweb"} <= {each.provider for each in sovereign}


def test_the_page_on_offers_tells_of_these():
    page = (Path(__file__).parents[2] / "docs" / "offers.md").read_text("utf-8")
    told = " ".join(page.split())
    makers, cards = ({getattr(each, name) for each in bundled()} for name in ("provider", "gpu"))
    assert f"there are {len(bundled()):,} offers of {len(makers)} providers and {len(cards)} cards" in told
    rows = [int(n.replace(",", "")) for n in re.findall(r"^\| ([\d,]+) \|", page, re.MULTILINE)]
    prices, kept = (
        int(n.replace(",", "")) for n in re.search(r"hold ([\d,]+) prices\. ([\d,]+) were kept", told).groups()
    )
    assert sum(rows) + kept == prices
    for name in sources():
        assert f"| `{name}` | {sum(each.source == name for each in bundled()):,} |" in page


def test_hosts_are_known_of_most():
    offers = bundled()
    assert sum(each.ram_bytes is None for each in offers) == 168
    assert {each.source for each in offers if each.ram_bytes is None} <= {
        "vast-api", "getdeploying", "gpuhunt/crusoe", "guide-2026-03"
    }  # fmt: skip
    assert {each.provider for each in offers if each.tenancy == "dedicated"} == {"oracle"}


def test_what_was_assumed_is_said():
    assumed = {(each.provider, each.gpu) for each in bundled() if "form factor" in each.assumed}
    assert assumed == {
        ("lyceum", "a100-pcie-80gb"), ("lyceum", "h100-pcie-80gb"), ("lyceum", "h200-nvl-141gb"),
        ("cudo", "h100-pcie-80gb"), ("seeweb", "h200-nvl-141gb"),
    }  # fmt: skip


def test_rows_are_distinct():
    keys = [(each.provider, each.kind, each.gpu, each.gpus, each.usd_per_hour, each.instance, each.via, each.source,
             each.term_hours) for each in bundled()]  # fmt: skip
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("name", TABLE)
def test_a_provider_has_a_history(name):
    of = providers()[name]
    assert set(of.sources) <= set(FACTS)
    for fact, fields in FACTS.items():
        given = {each for each in fields if each in TABLE[name] and TABLE[name][each] != "unknown"}
        assert fact in of.sources or given <= set(of.unverified), fact
    assert of.checked == CHECKED
    assert of.exposure in EXPOSURES
    assert told(of)
    assert set(of.unverified) <= set(TABLE[name])
    assert re.fullmatch(r"[A-Z]{2}|", of.seat)
    assert of.billing_step_s in (None, 1, 60, 600, 3600)
    assert of.billing_minimum_s is None or of.billing_minimum_s <= 3600
    assert of.egress_usd_per_gb is None or 0 <= of.egress_usd_per_gb <= 0.2
    if of.provisioning_s is not None:
        assert 30 <= of.provisioning_s[0] <= of.provisioning_s[1] <= 3600
    for certificate in of.certificates:
        assert re.fullmatch(r"[a-z0-9]+", certificate)
    assert of.tenancy in ("", *TENANCIES)
    assert not of.verified_certificates or re.search(r"20\d\d|\.[a-z]{2}", of.sources["certificates"]), (
        "no page, no day"
    )


def test_a_us_seat_is_us_controlled_and_no_other_level_is_given_to_one():
    for of in providers().values():
        assert (of.seat == "US") == (of.exposure == "us-controlled"), of.name
        if of.exposure == "eu-seat-us-nexus":
            assert of.seat in EU27
        if of.exposure == "no-known-us-parent":
            assert of.seat
            assert of.entity
            assert "seat" not in of.unverified


def test_who_most_offers_are_from_is_known():
    known = sum(offer.provider in providers() for offer in bundled())
    assert known / len(bundled()) > 0.9


def test_certificates_without_a_source_do_not_count():
    assert providers()["verda"].certificates
    assert providers()["verda"].verified_certificates == ()
    verified = {name for name, of in providers().items() if "iso27001" in of.verified_certificates}
    assert {"aws", "gcp", "azure", "nebius", "scaleway", "ovhcloud"} <= verified
    assert not {"lyceum", "verda", "seeweb", "vast.ai"} & verified
    # its HDS certificate names the products it holds for, and GPU instances are not among them
    assert "hds" not in providers()["scaleway"].certificates


def test_who_a_contract_would_be_with_is_not_invented():
    """Of these no source at hand names a company."""
    for name in ("hotaisle", "massedcompute", "enverge", "excesssupply", "dc_wildebeest", "latitude", "sesterce"):
        assert not (name in providers() and providers()[name].entity), name
    assert providers()["packetai"].tenancy == SHARED_CARD
    assert "Zurich" in providers()["lyceum"].places


def test_brokers_are_known():
    assert {offer.via for offer in bundled()} - {""} <= set(providers())


def test_regions():
    assert len({(row["provider"], row["region"]) for row in REGIONS}) == len(REGIONS) >= 200
    named = {(row["provider"], row["region"]): row["country"] for row in REGIONS}
    assert named["aws", "eu-west-2"] == "GB"
    assert named["aws", "eu-central-2"] == "CH"
    assert named["gcp", "europe-west6"] == "CH"
    assert named["azure", "westeurope"] == "NL"
    assert all(re.fullmatch(r"[A-Z]{2}", country) for country in named.values())


def test_rules_of_names_name_cards_and_reasons():
    text = (files("tunecast.market") / "catalog" / "instances.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        assert row["why"]
        assert row["gpu"] in {*gpus(), "", "PCIE"}, row
    assert sum(map(len, _rules().values())) > 60
