"""The table of cards: a source for each, and figures that can be true."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from importlib.resources import files

import pytest

from tunecast.hardware import gpus
from tunecast.units import GB, GIB, MIB

TABLE = tomllib.loads((files("tunecast.hardware") / "gpus.toml").read_text("utf-8"))
CARDS = pytest.mark.parametrize("name", TABLE)


@CARDS
def test_a_card_has_a_history(name):
    card = gpus()[name]
    assert card.source
    assert date(2026, 1, 1) <= card.checked
    rates = {f"dense_tflop_per_s.{kind}" for kind in TABLE[name].get("dense_tflop_per_s", ())}
    assert set(card.unverified) <= {*TABLE[name], *rates}
    assert date.fromisoformat(f"{card.released}-01") <= card.checked
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)


@CARDS
def test_torch_sees_less_than_the_driver_but_not_much_less(name):
    if "driver_mib" not in TABLE[name]:
        pytest.skip("nobody has said what its driver shows")
    card, driver_bytes = gpus()[name], TABLE[name]["driver_mib"] * MIB
    assert 0.96 * driver_bytes < card.memory_bytes <= driver_bytes
    least, most = TABLE[name].get("torch_total_gib", (0, 0))
    assert least <= most <= driver_bytes / GIB


@CARDS
def test_the_name_says_the_memory(name):
    said = re.search(r"-(\d+)gb$", name)
    if said:
        # marketing rounds in either direction, and some of HBM3e is kept back (B300)
        assert gpus()[name].memory_bytes == pytest.approx(int(said[1]) * GB, rel=0.08)


@CARDS
def test_compute_capability_and_multiprocessors_are_plausible(name):
    card = gpus()[name]
    bounds = {"NVIDIA": ((7, 0), (12, 1)), "AMD": ((9, 0), (9, 5)), "Intel": ((0, 0), (0, 0))}[card.vendor]
    assert bounds[0] <= card.compute_capability <= bounds[1]
    assert card.sm_count is None or 20 <= card.sm_count <= (400 if card.vendor == "AMD" else 200)


@CARDS
def test_rates_are_dense_and_double_from_one_width_to_the_next(name):
    """A sparse figure among dense ones shows as a factor of four; vendors round to three digits."""
    card = gpus()[name]
    rate = card.dense_flop_per_s
    if "bf16" in rate:
        assert card.vendor != "NVIDIA" or card.compute_capability >= (8, 0)
        assert rate["bf16"] == pytest.approx(rate.get("fp16", rate["bf16"]), rel=0.01) or name == "gaudi3"
    if card.vendor == "NVIDIA" and "tf32" in rate:
        assert rate["bf16"] == pytest.approx(2 * rate["tf32"], rel=0.012)
    if card.vendor in ("NVIDIA", "AMD") and "fp8" in rate:
        assert rate["fp8"] == pytest.approx(2 * rate["bf16"], rel=0.015)
    for kind, achieved in card.achieved_flop_per_s.items():
        boost = 1.15 if card.name.startswith("rtx-") else 1.0  # GeForce runs above the clock its sheets count with
        assert 0.35 * rate[kind] < achieved < boost * rate[kind]


@CARDS
def test_operations_per_byte_are_in_the_range_of_real_cards(name):
    card = gpus()[name]
    rate = card.dense_flop_per_s.get("bf16", card.dense_flop_per_s.get("fp16"))
    if rate is not None:
        assert 60 < rate / card.memory_bytes_per_s < 460
    assert 250e9 < card.memory_bytes_per_s <= 8e12


@CARDS
def test_l2_and_power_are_plausible(name):
    card = gpus()[name]
    assert card.l2_bytes is None or 4 * MIB <= card.l2_bytes <= 128 * MIB
    assert 70 <= card.tdp_w <= 1400
    assert (card.link == "none") == (card.link_bytes_per_s is None)


@CARDS
def test_a_measured_context_lies_in_its_spread(name):
    for field in ("context_bytes", "training_context_bytes"):
        if field in TABLE[name]:
            least, most = TABLE[name][f"{field}_range"]
            assert least <= TABLE[name][field] <= most
            assert TABLE[name]["context_source"]
