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
    assert set(card.recalled) <= set(TABLE[name])
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)


@CARDS
def test_torch_sees_less_than_the_driver_but_not_much_less(name):
    card, driver_bytes = gpus()[name], TABLE[name]["nvidia_smi_mib"] * MIB
    assert 0.96 * driver_bytes < card.memory_bytes < driver_bytes
    least, most = TABLE[name].get("torch_total_gib", (0, 0))
    assert least <= most <= driver_bytes / GIB


@CARDS
def test_the_name_says_the_memory(name):
    said = re.search(r"-(\d+)gb$", name)
    if said:
        # marketing rounds in either direction, and some of HBM3e is kept back (B300)
        assert gpus()[name].memory_bytes == pytest.approx(int(said[1]) * GB, rel=0.08)


@CARDS
def test_compute_capability_and_multiprocessors_are_of_nvidia(name):
    card = gpus()[name]
    assert (7, 0) <= card.compute_capability <= (12, 1)
    assert card.sm_count is None or 20 <= card.sm_count <= 200


@CARDS
def test_a_measured_context_lies_in_its_spread(name):
    for field in ("context_bytes", "training_context_bytes"):
        if field in TABLE[name]:
            least, most = TABLE[name][f"{field}_range"]
            assert least <= TABLE[name][field] <= most
            assert TABLE[name]["context_source"]
