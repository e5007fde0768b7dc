"""From price lists to offers: each rule, on rows made for it."""

from __future__ import annotations

from datetime import date

import pytest

from tunecast.market import clean, names
from tunecast.market.clean import cleaned
from tunecast.market.listing import Listing, count, price, words

TODAY = date(2026, 11, 15)
NEW = date(2026, 11, 1)


def row(provider="p", gpu="L40S", gpus=1, usd=1.0, **more):
    return Listing(provider, gpu, gpus, usd, **{"dated": NEW, "source": "test", "region": "r", "country": "DE", **more})


def dropped(*rows):
    return dict(cleaned(rows, TODAY).dropped)


def test_one_price_with_its_regions_is_one_offer():
    (offer,) = cleaned([row(region=name, country=where) for name, where in (("b", "FR"), ("a", "DE"))], TODAY).offers
    assert (offer.gpu, offer.usd_per_hour, offer.regions, offer.countries) == ("l40s", 1.0, ("a", "b"), ("DE", "FR"))
    assert offer.placed == "proven"


def test_spot_and_on_demand_are_two():
    found = cleaned([row(spot_usd_per_hour=0.5)], TODAY)
    assert [(offer.kind, offer.usd_per_hour) for offer in found.offers] == [("on-demand", 1.0), ("spot", 0.5)]
    assert found.kept == 2


def test_everything_is_kept_or_counted():
    rows = [row(), row(usd=None), row(gpu="H100"), row(spot_usd_per_hour=1.0), row(dated=date(2020, 1, 1))]
    found = cleaned(rows, TODAY)
    assert found.kept + sum(found.dropped.values()) == 6  # a row without a price counts as one


@pytest.mark.parametrize(
    ("rows", "why", "n"),
    [
        ([row(usd=None)], clean.NO_PRICE, 1),
        ([row(dated=date(2024, 11, 1))], clean.OLD, 1),
        ([row(spot_usd_per_hour=1.0)], clean.NOT_SPOT, 1),
        ([row("coreweave", "B200", 1, 8.6)], clean.NOT_SOLD, 1),
        ([row("lyceum", "L40S", 1, 1.0, spot_usd_per_hour=0.5)], clean.NOT_SOLD, 1),
        ([row(gpu="H100", via="broker")], names.NOT_TOLD, 1),
        ([row(gpu="A100")], names.NOT_TOLD, 1),
        ([row(gpu="K80")], names.NOT_KNOWN, 1),
        ([row(gpu="V100", form="PCIe")], names.NOT_TOLD, 1),
    ],
)
def test_rows_that_are_not_to_be_trusted(rows, why, n):
    assert dropped(*rows)[why] == n


def guess(usd, **more):
    return row(**{"gpu": "H100", "form": "SXM", "usd": usd, "guessed_form": True, "region": "", "country": "", **more})


def test_a_list_that_guesses_form_factors_is_not_believed():
    assert dropped(guess(2.49), guess(2.49, form="PCIe")) == {clean.GUESSED: 2}
    assert dropped(guess(1.0, gpu="L40S")) == {}


def test_what_the_provider_has_is_told_by_other_lists():
    """Even by one that is too old to tell the price."""
    own = row(gpu="H100", usd=9.0, form="PCIe", dated=date(2023, 11, 26))
    (offer,) = cleaned([own, guess(2.99), guess(2.99, gpu="H100-NVL", form="NVL")], TODAY).offers
    assert (offer.gpu, offer.usd_per_hour) == ("h100-pcie-80gb", 2.99)


def test_but_not_where_it_has_several():
    own = [row(gpu="H100", usd=3.0, form=form, instance=form) for form in ("PCIe", "SXM")]
    assert dropped(*own, guess(2.5)) == {clean.GUESSED: 1}


@pytest.mark.parametrize(
    ("gpu", "card"), [("A100-80GB", "a100-pcie-80gb"), ("H100", "h100-pcie-80gb"), ("H200", "h200-nvl-141gb")]
)
def test_a_form_factor_nobody_tells_is_the_slower_one_and_says_so(gpu, card):
    (offer,) = cleaned([row(gpu=gpu)], TODAY).offers
    assert (offer.gpu, offer.assumed) == (card, "form factor not said: the slower one is assumed")
    (told,) = cleaned([row(gpu=gpu, form="SXM")], TODAY).offers
    assert told.assumed == ""


def test_but_not_where_another_list_tells_which_the_provider_has():
    """Then the unsaid one may be either of two it has."""
    assert dropped(row(gpu="H100", form="SXM", usd=2.0, instance="s"), row(gpu="H100")) == {names.NOT_TOLD: 1}


def test_the_host_as_another_list_of_the_provider_tells_it():
    told = row(ram_gib=120.0, vcpus=12, instance="x", usd=2.0)
    bare = row(usd=1.0, region="", country="", dated=date(2026, 11, 2))
    by_price = {offer.usd_per_hour: offer for offer in cleaned([told, bare], TODAY).offers}
    assert (by_price[1.0].ram_bytes, by_price[1.0].vcpus) == (120 * 2**30, 12)
    # two lists that disagree tell nothing
    other = row(ram_gib=240.0, vcpus=24, instance="y", usd=3.0)
    by_price = {offer.usd_per_hour: offer for offer in cleaned([told, other, bare], TODAY).offers}
    assert (by_price[1.0].ram_bytes, by_price[1.0].vcpus) == (None, None)
    # hardware/nodes.toml has Azure's one machine of eight MI300X
    (azure,) = cleaned([row("azure", "MI300X", 8, 11.6)], TODAY).offers
    assert azure.ram_bytes == 1850 * 2**30


def test_disk_and_tenancy_where_they_are_told():
    (metal,) = cleaned([row("oracle", "A10", 4, 8.0, instance="BM.GPU.A10.4", disk_gb=7680.0)], TODAY).offers
    assert (metal.tenancy, metal.disk_bytes) == ("dedicated", 7680 * 10**9)
    (other,) = cleaned([row(disk_gb=0.0)], TODAY).offers
    assert (other.tenancy, other.disk_bytes) == ("", None)


def test_chips():
    assert {names.chip(name) for name in ("H100", "H100-NVL", "h100-sxm-80gb", "h100-nvl-94gb")} == {"h100"}
    assert {names.chip(name) for name in ("A100-80GB", "a100-pcie-80gb", "a100-sxm-80gb")} == {"a100 80gb"}
    assert names.chip("A100-40GB") == names.chip("a100-sxm-40gb") == "a100 40gb"


def test_what_no_machine_has_is_not_known():
    offers = cleaned(
        [row(f"p{n}", ram_gib=size) for n, size in enumerate((64.0, 1e300, float("nan"), 0.0))], TODAY
    ).offers
    assert [offer.ram_bytes for offer in offers] == [64 * 2**30, None, None, None]


def test_far_off_the_median_of_the_providers():
    rows = [row(f"p{n}", usd=1.0) for n in range(5)]
    assert dropped(*rows, row("far", usd=6.1)) == {clean.OUTLIER: 1}
    assert dropped(*rows, row("near", usd=5.9)) == {}
    assert dropped(*rows, row("slice", usd=0.1)) == {clean.OUTLIER: 1}


def test_a_provider_with_many_rows_is_one_voice():
    rows = [row("many", usd=10.0, region=str(n)) for n in range(50)] + [row(f"p{n}", usd=1.0) for n in range(3)]
    assert dropped(*rows) == {clean.OUTLIER: 50}


def test_a_newer_list_replaces_an_older_one():
    old = row(usd=2.0, dated=date(2026, 5, 1))
    assert dropped(old, row()) == {clean.REPLACED: 1}
    assert dropped(row(usd=2.0, dated=date(2026, 9, 1)), row()) == {}
    # a price without a region does not make one with a region forgotten
    assert dropped(old, row(usd=3.0, region="", country="")) == {}


def test_other_counts_of_an_older_list_stand_while_the_price_of_a_card_does():
    eight = {"gpus": 8, "dated": date(2026, 5, 1)}
    assert dropped(row(usd=1.0), row(usd=8.0, **eight)) == {}
    assert dropped(row(usd=1.0), row(usd=16.0, **eight)) == {clean.REPLACED: 1}


def test_a_price_without_a_region_beside_the_same_with_one():
    nowhere = row(usd=1.01, region="", country="")
    assert dropped(row(usd=1.0), nowhere) == {clean.AGAIN: 1}
    assert dropped(row(usd=1.0, dated=date(2026, 10, 1)), nowhere._replace(usd_per_hour=1.5)) == {}


def test_the_same_price_in_two_lists_is_the_newer_ones():
    one = row(usd=1.0, region="", country="", source="a")
    found = cleaned([one, one._replace(source="b", dated=date(2026, 11, 2))], TODAY)
    assert [offer.source for offer in found.offers] == ["b"]
    assert found.dropped == {clean.AGAIN: 1}


def test_runpod_and_lambda_list_every_machine_everywhere():
    offers = cleaned([row("runpod", region="DE"), row("lambda", "A10")], TODAY).offers
    assert {offer.placed for offer in offers} == {"listed"}
    (sold,) = cleaned([row("lambda", "A10", via="shadeform")], TODAY).offers
    assert sold.placed == "proven"


def test_pods_cannot_be_joined():
    (offer,) = cleaned([row("runpod")], TODAY).offers
    assert offer.max_nodes == 1


@pytest.mark.parametrize(
    ("provider", "gpu", "form", "instance", "card"),
    [
        ("aws", "H100", "", "p5.48xlarge", "h100-sxm-80gb"),
        ("aws", "H200", "", "p5en.48xlarge", "h200-sxm-141gb"),
        ("aws", "RTXPRO6000", "", "g7e.2xlarge", "rtx-pro-6000-server"),
        ("gcp", "H100", "", "a3-highgpu-8g", "h100-sxm-80gb"),
        ("azure", "H100", "SXM", "Standard_NC40ads_H100_v5", "h100-nvl-94gb"),
        ("azure", "V100", "SXM", "Standard_NC6s_v3", None),
        ("azure", "A10", "", "Standard_NV6ads_A10_v5", None),
        ("oracle", "V100", "", "BM.GPU3.8", "v100-sxm-16gb"),
        ("lambda", "A100-40GB", "", "gpu_1x_a100", "a100-pcie-40gb"),
        ("lambda", "A100-40GB", "", "gpu_8x_a100", "a100-sxm-40gb"),
        ("lambda", "A100", "", "lambdalabs_A100x8", "a100-sxm-40gb"),
        ("runpod", "H100", "", "8x_H100_SECURE", "h100-pcie-80gb"),
        ("runpod", "RTXPRO6000", "", "1x_RTXPRO6000-WK_SECURE", "rtx-pro-6000-workstation"),
        ("hyperstack", "A100-80GB", "", "hyperstack_A100-80GBx4", "a100-pcie-80gb"),
        ("hyperstack", "H100", "", "n3-H100x8", "h100-pcie-80gb"),
        ("verda", "A100-80GB", "", "1A100.22V", "a100-sxm-80gb"),
        ("verda", "A100", "", "8A100.40S.176V", "a100-sxm-40gb"),
        ("verda", "RTX-PRO-6000", "", "1RTXPRO6000.30V", None),
        ("nobody", "H100", "SXM", "", "h100-sxm-80gb"),
        ("nobody", "H100", "", "", None),
        ("nobody", "B200", "", "", "b200-sxm-180gb"),
        ("nobody", "RTX-6000-Ada", "", "", "rtx-6000-ada"),
        ("nobody", "A6000", "", "", "rtx-a6000"),
    ],
)
def test_which_card_is_meant(provider, gpu, form, instance, card):
    assert names.card(row(provider, gpu, form=form, instance=instance)).gpu == card


def test_nd96_has_eight_cards_whatever_a_list_says():
    told = names.card(row("azure", "H100", 12, instance="Standard_ND96isr_H100_v5"))
    assert (told.gpu, told.gpus) == ("h100-sxm-80gb", 8)


def test_memory_tells_40_from_80():
    forms = [names.card(row(gpu="A100", form="SXM", gpu_memory_gib=size)).gpu for size in (40.0, 80.0, None)]
    assert forms == ["a100-sxm-40gb", "a100-sxm-80gb", None]


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e9", "free", None])
def test_what_is_no_price(text):
    assert price(text) is None


def test_what_is():
    assert price("3.29") == 3.29
    assert (count("8.0"), count("8.5"), count("0"), count("1000")) == (8, None, None, None)


def test_names_are_one_printable_line():
    assert words("a\nb\x1b[31m\u202ec") == "ab[31mc"
    assert len(words("x" * 1000)) == 80
