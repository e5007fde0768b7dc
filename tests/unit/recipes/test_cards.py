"""What follows from how many cards there are."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job.recipes.cards import count, is_count, on_its_cards, unsaid, with_accumulation


def test_a_global_batch_is_shared() -> None:
    job = {"micro_batch": 2, "hardware": {"gpus": 8, "nodes": 2}, "parallel": {"tensor": 4}}
    assert with_accumulation(job, 64)["grad_accum"] == 8  # 64 rows / (4 ranks x 2 rows)
    assert with_accumulation({**job, "grad_accum": 3}, 64)["grad_accum"] == 3
    assert "grad_accum" not in with_accumulation(job, None)
    assert with_accumulation({"micro_batch": 100}, 8)["grad_accum"] == 1


def test_cards_are_asked_for_where_their_number_matters() -> None:
    assert unsaid({}) == ("hardware.gpu",)
    assert unsaid({"parallel": {"data": "fsdp"}}) == ("hardware.gpu", "hardware.gpus")
    assert unsaid({}, global_batch=8) == ("hardware.gpu", "hardware.gpus")
    assert unsaid({"hardware": {"gpu": "t4", "gpus": 2}, "parallel": {"data": "fsdp"}}) == ()


def test_the_fewest_are_taken_where_none_are_said() -> None:
    found = on_its_cards({"parallel": {"data": "fsdp", "expert": 16, "tensor": 2}}, None)
    assert found["hardware"] == {"nodes": 4, "gpus": 8}
    assert on_its_cards({"parallel": {"data": "fsdp"}}, None)["hardware"] == {"nodes": 1, "gpus": 2}


def test_alone_on_a_card_fsdp_is_not_used() -> None:
    job = {"hardware": {"gpus": 1}, "parallel": {"data": "fsdp", "state_dict_type": "sharded"}}
    assert on_its_cards(job, None)["parallel"] == {"data": "ddp"}
    offloaded = {"hardware": {"gpus": 1}, "parallel": {"data": "fsdp", "offload": "parameters"}}
    assert on_its_cards(offloaded, None) == offloaded


@pytest.mark.parametrize("junk", [None, [], {}, "x", "", True, -3, 0, 1.5, 10**40, "9" * 50, float("nan")])
def test_what_is_no_count_is_one(junk: Any) -> None:
    assert (count(junk), is_count(junk)) == (1, False)
    assert with_accumulation({"micro_batch": junk, "hardware": junk, "parallel": junk}, 4)["grad_accum"] == 4
