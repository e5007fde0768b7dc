"""What a run costs, on paper."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from math import exp

import pytest

from tunecast.market.cost import (
    CALM_PER_HOUR,
    INTERRUPTIONS_PER_HOUR,
    MONTH_S,
    RATE,
    ROUGH_PER_HOUR,
    billed,
    break_even_hours,
    expected_interruptions,
    given,
    total_cost,
)
from tunecast.market.offer import Offer
from tunecast.market.provider import Provider, providers, terms

DAY = date(2026, 11, 15)
OFFER = Offer("p", "on-demand", "h100-sxm-80gb", 8, 36.0, DAY, "test")
BY_SECOND = Provider("p", billing_step_s=1, billing_minimum_s=60, egress_usd_per_gb=0.1, egress_free_gb=100)
PHASES = {"provisioning": 100.0, "download": 200.0, "training": 3000.0, "evaluation": 300.0}
"""An hour: 36 USD an hour is a cent a second."""


def lines(cost):
    return {line.name: pytest.approx(line.usd) for line in cost.lines}


def test_a_cent_a_second():
    cost = total_cost(PHASES, OFFER, BY_SECOND)
    assert lines(cost) == {"provisioning": 1, "download": 2, "training": 30, "evaluation": 3, "rounding": 0}
    assert cost.total_usd == pytest.approx(36)
    assert (cost.wall_s, cost.billed_s, cost.interruptions) == (3600, 3600, 0)


def test_every_machine_is_paid_for():
    assert total_cost(PHASES, OFFER, BY_SECOND, nodes=3).total_usd == pytest.approx(108)


def test_what_is_not_billed_is_a_line_of_nothing():
    cost = total_cost(PHASES, OFFER, replace(BY_SECOND, bills_start=False))
    assert cost.lines[0][:2] == ("provisioning", 0.0)
    assert cost.total_usd == pytest.approx(35)
    assert cost.wall_s == 3600


@pytest.mark.parametrize(
    ("used_s", "step_s", "minimum_s", "billed_s"),
    [(3601, 1, 60, 3601), (30.2, 1, 60, 60), (3601, 60, 60, 3660), (3601, 3600, None, 7200), (61, 600, 600, 600)],
)
def test_rounded_up_to_the_step_and_at_least_the_minimum(used_s, step_s, minimum_s, billed_s):
    of = Provider("p", billing_step_s=step_s, billing_minimum_s=minimum_s)
    assert billed(used_s, of, OFFER) == billed_s


def test_rounding_is_a_line():
    cost = total_cost({"training": 3601.0}, OFFER, Provider("p", billing_step_s=3600))
    assert lines(cost) == {"training": 36.01, "rounding": 35.99}


def test_bare_metal_has_a_minimum_of_its_own():
    oracle = Provider("oracle", billing_step_s=1, billing_minimum_s=60, bare_metal_minimum_s=3600)
    assert billed(100, oracle, replace(OFFER, instance="BM.GPU.H100.8")) == 3600
    assert billed(100, oracle, replace(OFFER, instance="VM.GPU.A10.1")) == 100


def test_an_unknown_biller_is_taken_to_bill_by_the_hour_and_that_is_said():
    cost = total_cost({"training": 10.0}, OFFER, Provider("nobody"))
    assert cost.billed_s == 3600
    assert any("nobody" in text for text in cost.assumptions)


def test_storage_and_egress():
    cost = total_cost(
        {"training": 3600.0},
        OFFER,
        replace(BY_SECOND, storage_usd_per_gb_month=0.2),
        storage_bytes=50e9,
        storage_s=MONTH_S / 2,
        egress_bytes=150e9,
    )
    assert lines(cost) == {"training": 36, "rounding": 0, "storage": 5, "egress": 5}  # 50 GB * 0.2 / 2; 50 GB * 0.1


def test_egress_nobody_has_a_price_for_costs_what_the_dearest_takes():
    cost = total_cost(PHASES, OFFER, replace(BY_SECOND, egress_usd_per_gb=None, egress_free_gb=0), egress_bytes=1e9)
    assert lines(cost)["egress"] == max(each.egress_usd_per_gb or 0 for each in providers().values())
    assert any("egress is not known" in text for text in cost.assumptions)


def test_an_unknown_price_of_storage_is_said():
    cost = total_cost(PHASES, OFFER, BY_SECOND, storage_bytes=1e9)
    assert lines(cost)["storage"] == 0.023
    assert any("storage" in text for text in cost.assumptions)


def test_vat_is_on_all_of_it():
    assert total_cost(PHASES, OFFER, BY_SECOND, vat_fraction=0.19).total_usd == pytest.approx(36 * 1.19)


def test_interruptions_on_paper():
    """Two segments of an hour, one interruption an hour: E = (1 + R)(e - 1) hours each, R = 0.1 hours."""
    phases = {"start": 360.0, "training": 7200.0}
    spot = expected_interruptions(phases, 1.0, 3600.0)
    assert spot.interruptions == pytest.approx(2 * (exp(1) - 1))
    assert spot.wall_s + 7200 == pytest.approx(2 * 1.1 * (exp(1) - 1) * 3600)


def test_what_is_not_billed_while_restarting_adds_time_but_no_money():
    phases = {"provisioning": 600.0, "training": 7200.0}
    spot = expected_interruptions(phases, 0.5, 1800.0, frozenset({"provisioning"}))
    assert spot.wall_s - spot.billed_s == pytest.approx(600 * spot.interruptions)


def test_more_checkpoints_lose_less():
    phases = {"training": 36000.0}
    often, seldom, never = (expected_interruptions(phases, 0.2, every).wall_s for every in (600.0, 7200.0, None))
    assert 0 < often < seldom < never


def test_rare_interruptions_cost_half_a_segment_and_a_restart():
    """To first order: rate * work * (segment / 2 + restart). A new machine prepares the data once more."""
    phases = {"start": 200.0, "preparation": 100.0, "training": 36000.0}
    spot = expected_interruptions(phases, 1e-4, 3600.0)
    assert spot.wall_s == pytest.approx(1e-4 * 10 * (1800 + 300), rel=1e-3)


def test_only_spot_is_interrupted_and_the_default_rate_is_said():
    cost = total_cost(PHASES, replace(OFFER, kind="spot"), BY_SECOND, checkpoint_every_s=600.0)
    assert cost.interruptions > 0
    assert any("interrupted every" in text for text in cost.assumptions)
    own = total_cost(PHASES, replace(OFFER, kind="spot"), BY_SECOND, interruptions_per_hour=0.0)
    assert (own.interruptions, own.assumptions) == (0, ())
    assert "interruptions" not in lines(total_cost(PHASES, OFFER, BY_SECOND))


def test_the_default_rate_lies_between_its_sources():
    assert CALM_PER_HOUR < INTERRUPTIONS_PER_HOUR < ROUGH_PER_HOUR
    assert pytest.approx(CALM_PER_HOUR * ROUGH_PER_HOUR) == INTERRUPTIONS_PER_HOUR**2
    # 17.5 % within a month of 730.5 hours; ten in 44 hours
    assert pytest.approx(0.1924 / 730.5, rel=1e-3) == CALM_PER_HOUR
    assert pytest.approx(0.2273, rel=1e-3) == ROUGH_PER_HOUR


def test_several_machines_are_interrupted_more_often():
    spot = replace(OFFER, kind="spot")
    one, four = (total_cost(PHASES, spot, BY_SECOND, nodes=nodes, interruptions_per_hour=0.01) for nodes in (1, 4))
    assert four.interruptions > 3.9 * one.interruptions


def test_a_run_that_never_ends_has_a_number_all_the_same():
    spot = expected_interruptions({"training": 1e9}, 1.0, None)
    assert spot.wall_s > 1e20


def test_per_epoch_token_and_year():
    cost = total_cost(PHASES, OFFER, BY_SECOND)
    assert cost.usd_per_epoch(3) == pytest.approx(12)
    assert cost.usd_per_million_tokens(18e6) == pytest.approx(2)
    assert cost.usd_per_year() == pytest.approx(52 * 36)


def test_a_reservation_pays_from_so_many_hours_on():
    """A year at 1 an hour is 8,760; on demand at 4 that buys 2,190 hours."""
    reserved = replace(OFFER, kind="reserved", gpus=1, usd_per_hour=1.0, term_hours=8760.0)
    on_demand = replace(OFFER, gpus=1, usd_per_hour=4.0)
    assert break_even_hours(reserved, on_demand) == pytest.approx(2190)
    assert break_even_hours(reserved, replace(on_demand, usd_per_hour=0.9)) is None
    assert break_even_hours(on_demand, reserved) is None


def test_a_reservation_is_due_either_way():
    reserved = replace(OFFER, kind="reserved", usd_per_hour=1.0, term_hours=8760.0)
    cost = total_cost(PHASES, reserved, BY_SECOND, nodes=1)
    assert cost.total_usd == 8760
    assert lines(cost)["reservation"] == 8760
    longer = total_cost({"training": 9000 * 3600.0}, reserved, BY_SECOND)
    assert longer.total_usd == 2 * 8760, "a second term"


def test_an_owned_machine_costs_its_electricity():
    owned = replace(OFFER, provider="lab", kind="owned", usd_per_hour=0.36)
    cost = total_cost(PHASES, owned, terms(owned), storage_bytes=1e12, egress_bytes=1e12)
    assert cost.total_usd == pytest.approx(0.35)  # nothing while it is not there yet, no rent for the disk
    assert cost.assumptions == ()


def test_a_broker_bills_as_the_broker_does():
    scaleway = replace(OFFER, provider="scaleway")
    assert terms(scaleway).billing_step_s == 60
    sold = terms(replace(scaleway, via="shadeform"))
    assert (sold.billing_step_s, sold.egress_usd_per_gb, sold.seat) == (None, None, "FR")


def test_euros():
    assert given(1.25, DAY).eur(10.0) == 8.0
    assert RATE.source
    assert RATE.dated < DAY
