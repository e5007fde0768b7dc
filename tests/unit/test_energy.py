"""Kilowatt-hours on paper, and the countries' table."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from tunecast.errors import UsageError
from tunecast.hardware.catalog import gpu
from tunecast.hardware.grids import grid
from tunecast.job import job_from_dict
from tunecast.prediction.time.energy import energy

COUNTRIES = tomllib.loads((files("tunecast.hardware") / "grids.toml").read_text("utf-8"))["countries"]


def job(**hardware: object):
    return job_from_dict({"model": "gpt2", "hardware": {"gpu": "h100-sxm-80gb", **hardware}})


def test_an_hour_on_paper():
    # 8 cards of 700 W: busy at 87 %, and 2.8 kW besides: 8 x 609 + 2800 = 7672 W
    told = energy(job(gpus=8, pue=1), gpu("h100-sxm-80gb"), {"training": 3600.0}, 1.0)
    assert told is not None
    assert told.kwh == pytest.approx(7.672)
    low, high = told.range
    assert low < told.kwh < high
    assert (told.co2_kg, told.country) == (None, None)


def test_the_measured_machine():
    """76 % of 10.2 kW in intensive training (arXiv 2506.14551); 8.4 kW at most."""
    told = energy(job(gpus=8, pue=1), gpu("h100-sxm-80gb"), {"training": 3600.0}, 1.0)
    assert told is not None
    assert told.kwh == pytest.approx(0.76 * 10.2, rel=0.02)
    assert told.range[1] >= 8.4


def test_idle_phases_take_less_and_provisioning_nothing():
    card = gpu("h100-sxm-80gb")
    told = energy(job(host_w=100, pue=2), card, {"load": 3600.0, "provisioning": 9999.0}, 1.0)
    assert told is not None
    assert told.kwh == pytest.approx(2 * (0.1 + 0.07))
    half = energy(job(host_w=0, pue=1), card, {"training": 3600.0}, 0.5)
    assert half is not None
    assert half.kwh == pytest.approx(0.07 + 0.5 * (0.609 - 0.07))


def test_co2_of_a_country():
    for name in ("NO", "nor", "Norway", " norway "):
        told = energy(job(country=name), gpu("h100-sxm-80gb"), {"training": 3600.0}, 1.0)
        assert told is not None
        assert told.co2_kg == pytest.approx(told.kwh * 30.75 / 1000)
        assert told.country == "NO"
        assert "Norway: 31 g" in told.source
    assert set(told.to_dict()) == {"kwh", "range", "co2_kg", "country", "source"}


def test_an_unknown_country_is_not_guessed():
    with pytest.raises(UsageError, match=r"^hardware.country: got 'Germny'; allowed: .*; nearest: Germany$"):
        grid("Germny")


def test_a_card_without_known_power_has_no_energy():
    from dataclasses import replace

    assert energy(job(), replace(gpu("h100-sxm-80gb"), tdp_w=None), {"training": 1.0}, 1.0) is None


def test_the_table_is_sound():
    assert len(COUNTRIES) >= 60
    assert all(len(code) == 2 and code.isupper() and len(row["alpha3"]) == 3 for code, row in COUNTRIES.items())
    assert all(20 <= row["g_per_kwh"] <= 1000 for row in COUNTRIES.values())
    assert len({row["name"] for row in COUNTRIES.values()}) == len(COUNTRIES)
    assert COUNTRIES["FR"]["g_per_kwh"] < COUNTRIES["DE"]["g_per_kwh"] < COUNTRIES["PL"]["g_per_kwh"]
