"""A job against every card by a replay per generation: the figures are those of every card's own prediction."""

from __future__ import annotations

import pytest

import tunecast
from tunecast.advise.every_card import NVIDIA
from tunecast.door.cards import cards
from tunecast.hardware.catalog import gpus
from tunecast.units import GIB

pytestmark = pytest.mark.whole
JOB = {"model": "llama-3.2-1b", "method": "lora", "seq_len": 1024, "micro_batch": 4, "hardware": {"gpu": "rtx-4090"}}


def test_every_card_of_the_catalogue_the_smallest_first() -> None:
    found = cards(JOB)
    assert sorted(card.gpu for card in found.cards) == sorted(gpus())
    assert [card.memory_bytes for card in found.cards] == sorted(card.memory_bytes for card in found.cards)
    assert {card.vendor for card in found.cards if card.verdict == "refused"} == {"Intel"}


def test_its_own_card_is_the_prediction() -> None:
    own = next(card for card in cards(JOB).cards if card.gpu == "rtx-4090")
    told = tunecast.predict(JOB)
    assert (own.capacity_bytes, own.needs_bytes) == (told.capacity_bytes, told.smallest_capacity_bytes)
    assert own.verdict == told.on_card.verdict


def test_a_larger_need_fits_fewer_cards() -> None:
    few, many = (cards({**JOB, "seq_len": length}) for length in (4096, 512))
    fitting = [{card.gpu for card in found.cards if card.verdict == "fits"} for found in (few, many)]
    assert fitting[0] < fitting[1]


def test_a_replay_per_generation_says_what_every_card_would() -> None:
    quick_ones, every = cards(JOB), cards(JOB, every_replay=True)
    assert (quick_ones.replayed, every.replayed) == ("generation", "every")
    for quick, own in zip(quick_ones.cards, every.cards, strict=True):
        assert quick.verdict == own.verdict and quick.capacity_bytes == own.capacity_bytes, quick.gpu
        if quick.needs_bytes is not None:
            assert quick.needs_bytes == pytest.approx(own.needs_bytes, rel=0.02), quick.gpu
    assert quick_ones.smallest == every.smallest


def test_the_smallest_multiplies_in_the_jobs_dtype() -> None:
    found = cards(JOB)
    smallest = next(card for card in found.cards if card.gpu == found.smallest)
    assert smallest.vendor == NVIDIA and smallest.reason is None and smallest.verdict == "fits"
    old = [card for card in found.cards if card.reason is not None and card.verdict != "refused"]
    assert old and all(gpus()[card.gpu].compute_capability < (8, 0) for card in old)


def test_what_others_hold_of_a_card_counts_on_all() -> None:
    plain, less = cards(JOB), cards({**JOB, "hardware": {"gpu": "rtx-4090", "reserve_bytes": GIB}})
    for before, after in zip(plain.cards, less.cards, strict=True):
        if before.capacity_bytes is not None and after.capacity_bytes is not None:
            assert before.capacity_bytes - after.capacity_bytes == GIB
