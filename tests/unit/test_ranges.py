"""Ranges on paper: where they end, whose runs they are made of, and what is never narrower."""

from __future__ import annotations

import pytest

from tunecast.prediction.memory import ranges
from tunecast.prediction.memory.ranges import Basis, MemoryBand, band_of, device_was_measured, is_unseen, range_of
from tunecast.units import GIB, MIB

TABLE = {
    ("measured card", "allocated"): (0.0, 0.0, 9, 3, 1.0),
    ("elsewhere", "allocated"): (0.01, 0.02, 9, 3, 0.9),
    ("litgpt", "allocated"): (0.03, 0.0, 9, 3, 0.8),
    ("torchtune", "allocated"): (0.06, 0.06, 9, 3, 0.8),
    ("guessed", "allocated"): (0.05, 0.05, 3, 3, None),
    ("measured card", "device"): (0.0, 0.0, 9, 3, 1.0),
    ("elsewhere", "reserved"): (0.01, 0.02, 9, 3, 0.9),
    ("trl", "device"): (0.02, 0.2, 9, 2, 0.8),
    ("accelerate, several cards", "allocated"): (0.04, 0.01, 9, 2, 0.8),
    ("unseen", "allocated"): (0.1, 0.1, 99, 9, 0.8),
    ("unseen", "reserved"): (0.1, 0.1, 99, 9, 0.8),
}


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "BANDS", TABLE)


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        (Basis(), (GIB - 512, GIB + 512)),
        (Basis(measured_card=False), (GIB - GIB // 100, GIB + GIB // 50)),
        (Basis("litgpt", measured_card=False), (GIB - GIB * 3 // 100, GIB + 512)),
        (Basis("litgpt", measured_card=True), (GIB - GIB * 3 // 100, GIB + 512)),
        (Basis("unsloth"), (GIB - 512, GIB + 512)),
        (Basis("megatron"), (GIB - GIB // 10, GIB + GIB // 10)),
        (Basis("trl", several=True), (GIB - GIB * 4 // 100, GIB + GIB // 100)),
        (Basis("litgpt", several=True), (GIB - GIB // 10, GIB + GIB // 10)),
        (Basis(guessed=True), (GIB - GIB // 20, GIB + GIB // 20)),
        (Basis("litgpt", measured_card=False, guessed=True), (GIB - GIB // 20, GIB + GIB // 20)),
        (Basis("torchtune", measured_card=False, guessed=True), (GIB - GIB * 6 // 100, GIB + GIB * 6 // 100)),
    ],
)
def test_a_prediction_is_judged_by_the_runs_most_like_it(basis: Basis, expected: tuple[int, int]) -> None:
    assert range_of(GIB, "allocated", basis) == expected


def test_a_stack_nobody_measured_in_a_kind_is_judged_by_its_card() -> None:
    assert band_of("reserved", Basis("litgpt", measured_card=False)) == MemoryBand(0.01, 0.02, 9, 3, 0.9)


def test_several_cards_are_not_judged_by_one() -> None:
    assert band_of("reserved", Basis(several=True)).above == 0.1
    assert is_unseen("reserved", Basis(several=True)) and not is_unseen("allocated", Basis(several=True))
    assert not device_was_measured(Basis(several=True))


def test_device_memory_was_measured_on_the_one_card_and_of_one_stack() -> None:
    assert device_was_measured(Basis()) and device_was_measured(Basis("litgpt"))
    assert device_was_measured(Basis("trl", measured_card=False))
    assert not device_was_measured(Basis(measured_card=False))


def test_a_range_is_no_narrower_than_the_allocators_steps() -> None:
    assert range_of(GIB, "device", Basis()) == (GIB - 2 * MIB, GIB + 2 * MIB)


def test_no_range_begins_below_nothing() -> None:
    assert range_of(100, "allocated", Basis()) == (0, 612)
