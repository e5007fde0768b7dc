"""What a card's products reach where nobody measured them: its power limit says how much."""

from __future__ import annotations

import pytest

from tunecast.hardware.catalog import gpus
from tunecast.prediction.price.rates import ACHIEVABLE, PER_JOULE, USUALLY_SUSTAINED, rates_of
from tunecast.records import replace

ADA = replace(gpus()["rtx-6000-ada"], achieved_flop_per_s={})


def share(tdp_w: int | None) -> float:
    card = replace(ADA, tdp_w=tdp_w)
    return rates_of(card).by_dtype["bf16"] / USUALLY_SUSTAINED / card.dense_flop_per_s["bf16"]


def test_a_chip_does_no_more_than_its_board_may_draw() -> None:
    assert share(150) == pytest.approx(PER_JOULE["Ada"] * 150 / ADA.dense_flop_per_s["bf16"])
    assert share(300) == pytest.approx(2 * share(150))
    assert share(700) == share(None) == pytest.approx(ACHIEVABLE)


def test_other_dtypes_lose_as_much() -> None:
    strong, weak = rates_of(replace(ADA, tdp_w=700)), rates_of(replace(ADA, tdp_w=150))
    for name in ("bf16", "fp16", "fp8", "int8"):
        assert weak.by_dtype[name] / strong.by_dtype[name] == pytest.approx(share(150) / ACHIEVABLE)
    assert weak.by_dtype["fp32"] == strong.by_dtype["fp32"]


def test_what_was_measured_comes_first() -> None:
    card = replace(ADA, tdp_w=150, achieved_flop_per_s={"bf16": 300e12})
    assert rates_of(card).by_dtype["bf16"] == pytest.approx(300e12 * USUALLY_SUSTAINED)


def test_a_chip_nobody_knows_it_of_keeps_the_usual_share() -> None:
    assert rates_of(replace(ADA, tdp_w=150, architecture="Other")).by_dtype["bf16"] == pytest.approx(
        ADA.dense_flop_per_s["bf16"] * ACHIEVABLE * USUALLY_SUSTAINED
    )


@pytest.mark.parametrize(("name", "chip"), [("rtx-a6000", "Ampere GA102"), ("l40s", "Ada"), ("l4", "Ada")])
def test_measured_cards_do_what_their_power_pays_for(name: str, chip: str) -> None:
    """72 to 350 W."""
    card = gpus()[name]
    assert card.tdp_w is not None and card.architecture.startswith(chip)
    assert card.achieved_flop_per_s["bf16"] == pytest.approx(PER_JOULE[chip] * card.tdp_w, rel=0.08)


def test_cards_of_amd_are_in_the_order_of_their_sheets() -> None:
    names = ("mi300x", "mi325x", "mi350x", "mi355x")
    reached = [rates_of(gpus()[name]).flop_per_s("bfloat16") for name in names]
    assert reached == sorted(reached)
    # nobody measured the MI350X: as much of its 2300 as the MI355X has of its 2500, and 0.77 of that in a step
    assert reached[2] == pytest.approx(2300e12 * 0.626 * 0.77)


def test_a_geforce_of_ada_is_not_held_back_by_its_power() -> None:
    """Its 450 W would pay for twice what it computes; the L40S' 350 W do not pay for what it could."""
    assert rates_of(gpus()["rtx-4090"]).flop_per_s("bfloat16") == pytest.approx(163.1e12)
    assert rates_of(gpus()["l40s"]).flop_per_s("bfloat16") == pytest.approx(269.2e12 * 0.88)
