"""`tunecast offers add`, and the table offers are kept in."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from tunecast.errors import NotResolved, UsageError
from tunecast.market.cost import given
from tunecast.market.offer import Offer, age
from tunecast.market.own import joined, own_offers
from tunecast.market.table import COLUMNS, FIRST_COLUMNS, offers_from, text_from

TODAY = date(2026, 11, 15)
RATE = given(1.25, TODAY)


def added(tmp_path, text):
    path = tmp_path / "offers.toml"
    path.write_text(text)
    return own_offers(path, TODAY, RATE)


def test_a_price_in_euros(tmp_path):
    (offer,) = added(
        tmp_path,
        '[[offer]]\nprovider = "acme"\ngpu = "h100"\nform = "sxm 80gb"\ngpus = 8\n'
        'eur_per_hour = 16\ncountry = "Germany"\n',
    )
    assert (offer.gpu, offer.gpus, offer.usd_per_hour, offer.countries) == ("h100-sxm-80gb", 8, 20.0, ("DE",))
    assert (offer.kind, offer.dated, offer.provider) == ("on-demand", TODAY, "acme")


def test_an_owned_machine_costs_what_it_draws(tmp_path):
    """Two RTX 4090 of 450 W and half of that besides: 1.35 kW at 0.40 EUR."""
    (offer,) = added(tmp_path, '[[offer]]\nprovider = "lab"\ngpu = "rtx-4090"\ngpus = 2\neur_per_kwh = 0.4\n')
    assert offer.kind == "owned"
    assert offer.usd_per_hour == pytest.approx(1.35 * 0.4 * 1.25)
    assert "2 x 450 W" in offer.source
    assert offer.max_nodes == 1


def test_watts_and_pue_as_given(tmp_path):
    (offer,) = added(tmp_path, '[[offer]]\ngpu = "rtx-4090"\nusd_per_kwh = 0.5\nwatts = 1000\npue = 1.2\n')
    assert offer.usd_per_hour == pytest.approx(0.6)


def test_disk_and_tenancy(tmp_path):
    (offer,) = added(
        tmp_path, '[[offer]]\nprovider = "p"\ngpu = "l40s"\nusd_per_hour = 1\ndisk_gb = 960\ntenancy = "shared"\n'
    )
    assert (offer.disk_bytes, offer.tenancy) == (960 * 10**9, "shared")


def test_a_reservation(tmp_path):
    (offer,) = added(tmp_path, '[[offer]]\nprovider = "p"\ngpu = "l40s"\nusd_per_hour = 0.5\nterm_hours = 8760\n')
    assert (offer.kind, offer.term_hours) == ("reserved", 8760)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[offer]]\ngpu = "l40s"\n', "needs one of usd_per_hour"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 1\neur_per_hour = 1\n', "usd_per_hour and eur_per_hour"),
        ('[[offer]]\ngpu = "l40x"\nusd_per_hour = 1\n', "nearest"),
        ('[[offer]]\ngpu = "a100"\nusd_per_hour = 1\n', "say which"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = -1\n', "a number above 0"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = true\n', "a number above 0"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = nan\n', "a number above 0"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 99999\n', "at most 10000"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 1\ngpus = 0\n', "from 1 to 72"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hours = 1\n', "nearest: usd_per_hour"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 1\ncountry = "Atlantis"\n', "country"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 1\nkind = "owned"\n', "owned (with a price a kWh)"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 1\nkind = "reserved"\n', "with term_hours"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 1\ninterconnect = "string"\n', "hardware.interconnect"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 1\nregion = "a;b"\n', "without ;"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 1\ndated = "soon"\n', "a day as"),
        ('[[offer]]\ngpu = "l40s"\nusd_per_hour = 1\ntenancy = "mine"\n', "dedicated, shared"),
        ('[offer]\ngpu = "l40s"\n', "[[offer]]"),
        ("not toml at all", "not TOML"),
        ("", "[[offer]]"),
    ],
)
def test_a_refusal_says_the_remedy(tmp_path, text, told):
    with pytest.raises(UsageError) as refused:
        added(tmp_path, text)
    assert told in refused.value.message


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(NotResolved, match="no such file"):
        own_offers(tmp_path / "none.toml", TODAY, RATE)


ONE = Offer(
    *("acme", "spot", "h100-sxm-80gb", 8, 20.5, date(2026, 10, 1), "test; with, both", ("eu-1", "x"), ("DE", "")),
    *("proven", "big.8", 192, 2**41, "nvlink4", 4, "broker"),
)


def test_the_table_gives_back_what_was_written():
    more = (
        replace(ONE, disk_bytes=1_920_383_410_176, tenancy="shared", assumed="the slower one"),
        Offer("b", "reserved", "l40s", 1, 0.5, TODAY, "s", term_hours=8760.0),
    )
    assert offers_from(text_from(more), "x") == more


def test_a_table_of_an_older_version_is_read():
    old = "".join(line.rpartition(",,,")[0] + "\n" for line in text_from([ONE]).splitlines()[1:])
    assert offers_from(",".join(FIRST_COLUMNS) + "\n" + old, "x") == (ONE,)


@pytest.mark.parametrize(
    ("column", "cell", "told"),
    [
        ("gpu", "h100", "gpu: got 'h100'"),
        ("kind", "free", "allowed: on-demand"),
        ("usd_per_hour", "0", "above 0"),
        ("usd_per_hour", "nan", "above 0"),
        ("gpus", "1.5", "whole number"),
        ("dated", "yesterday", "a day as"),
        ("source", "", "where it is from"),
        ("places", "Germany:x", "two letters"),
        ("provider", "A B\x1b", "lower case"),
        ("interconnect", "string", "nvlink4"),
        ("term_hours", "-1", "above 0"),
        ("disk_gb", "-1", "above 0"),
        ("tenancy", "both", "dedicated, shared"),
    ],
)
def test_a_wrong_cell_is_told_with_its_line(column, cell, told):
    rows = text_from([replace(ONE, source="test")]).splitlines()
    cells = rows[1].split(",")
    cells[COLUMNS.index(column)] = cell
    with pytest.raises(NotResolved) as refused:
        offers_from("\n".join([rows[0], ",".join(cells)]) + "\n", "x.csv")
    assert "x.csv, line 2" in refused.value.message
    assert told in refused.value.message


def test_another_table_is_no_table_of_offers():
    with pytest.raises(NotResolved, match="not a table of offers"):
        offers_from("a,b\n1,2\n", "x.csv")


def test_a_csv_can_be_added_as_it_is_kept(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(text_from([ONE]))
    assert own_offers(path, TODAY, RATE) == (ONE,)


def test_the_same_machine_is_replaced():
    cheaper = replace(ONE, usd_per_hour=1.0)
    other = replace(ONE, gpus=4)
    assert joined([ONE, other], [cheaper]) == (other, cheaper)


def test_age():
    assert [age(days) for days in (0, 1, 85, 121, 702)] == ["0 days", "1 day", "85 days", "4 months", "23 months"]
    assert not ONE.is_stale(date(2026, 12, 30))
    assert ONE.is_stale(date(2026, 12, 31))
    assert not replace(ONE, kind="owned").is_stale(date(2030, 1, 1))
