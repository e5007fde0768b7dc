"""`tunecast offers`."""

from __future__ import annotations

import json

import pytest

from tunecast.cli import main as cli
from tunecast.market import store


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def run(capsys, *argv):
    code = cli.main(["offers", *argv])
    told = capsys.readouterr()
    return code, told.out, told.err


def told(capsys, *argv):
    code, out, _ = run(capsys, *argv, "--json")
    assert code == 0
    return json.loads(out)


def test_a_table_the_cheapest_card_hour_first(capsys):
    code, out, err = run(capsys, "h100", "sxm", "--gpus", "8")
    assert (code, err) == (0, "")
    assert "A price is not availability" in out
    assert "8 x h100-sxm-80gb" in out
    assert "more; --all shows them" in out
    rows = told(capsys, "h100", "sxm", "--gpus", "8")["offers"]
    assert len(rows) > 30
    assert [row["usd_per_gpu_hour"] for row in rows] == sorted(row["usd_per_gpu_hour"] for row in rows)


def test_what_a_plan_counts_on_comes_before_old_and_odd_prices(capsys):
    _, out, _ = run(capsys, "t4")
    rows = [line for line in out.splitlines() if " x t4 " in line]
    doubtful = ["spot*" in row or "months!" in row for row in rows]
    assert doubtful == sorted(doubtful) and not doubtful[0]


def test_json_has_the_source_and_the_age_of_each(capsys):
    answer = told(capsys, "--gpu", "l40s")
    assert answer["schema"] == "tunecast.offers/1"
    assert "not availability" in answer["note"]
    for row in answer["offers"]:
        assert row["gpu"] == "l40s"
        assert row["source"]
        assert row["dated"]
        assert row["age_days"] >= 0


def test_stale_rows_show_their_age(capsys):
    _, out, _ = run(capsys, "oracle", "a10", "--gpus", "1")
    assert "old" in out or "months!" in out


def test_the_eu_for_sure(capsys):
    answer = told(capsys, "--eu")
    assert {row["in_eu"] for row in answer["offers"]} == {"yes"}
    assert answer["unknown"], "RunPod and those that name no region are counted"
    assert not any(row["provider"] in ("runpod", "lyceum") for row in answer["offers"])


def test_the_eu_and_countries_are_one_wish(capsys):
    """An offer in Finland and in the US is none of the US's in the EU."""
    code, out, err = run(capsys, "--eu", "--country", "US")
    assert (code, out) == (2, "")
    assert (
        err == "tunecast: error: --country: got US with --eu; allowed: countries of the EU, or one of the two flags\n"
    )
    both = told(capsys, "--eu", "--country", "US", "--country", "FI")["offers"]
    assert both and all(set(row["countries"]) == {"FI"} for row in both)


def test_spot_and_no_spot_contradict(capsys):
    code, _, err = run(capsys, "--spot", "--no-spot")
    assert code == 2 and "--spot: got it with --no-spot" in err


def test_beyond_us_law(capsys):
    answer = told(capsys, "--no-cloud-act", "--no-spot")
    assert {row["exposure"] for row in answer["offers"]} == {"no-known-us-parent"}
    assert not any(row["via"] for row in answer["offers"])
    assert {"verda", "seeweb"} <= {row["provider"] for row in answer["offers"]}


def test_filters(capsys):
    assert {row["kind"] for row in told(capsys, "a100", "--spot")["offers"]} == {"spot"}
    assert all("DE" in row["countries"] for row in told(capsys, "--country", "Germany")["offers"])
    assert all(row["usd_per_hour"] <= 1 for row in told(capsys, "--max-usd", "1")["offers"])
    assert {row["provider"] for row in told(capsys, "--provider", "Verda")["offers"]} == {"verda"}
    assert {row["gpu"] for row in told(capsys, "--vendor", "amd")["offers"]} == {"mi300x"}
    cards = {row["gpu"] for row in told(capsys, "--interconnect", "nvlink", "--gpus", "8")["offers"]}
    assert "h100-sxm-80gb" in cards
    assert "l40s" not in cards


def test_certified_is_what_a_source_names(capsys):
    """Verda says ISO 27001 somewhere; no source at hand does."""
    answer = told(capsys, "--certified", "ISO 27001")
    certified = {row["provider"] for row in answer["offers"]}
    assert {"nebius", "aws"} <= certified
    assert not {"verda", "lyceum", "vast.ai"} & certified
    assert answer["unknown"]["no source at hand names the certificate"] > 100


def test_one_offer_has_a_page(capsys):
    code, out, _ = run(capsys, "lyceum", "b200", "--gpus", "8", "--spot")
    assert code == 0
    for part in (
        "not verified",
        "in the EU        not known",
        "between          cannot be joined",
        "host             256 vCPUs, 1448 GiB of RAM",
        "disk             not known",
        "tenancy          not known",
        "extrapolated",
        "EUR",
        "A price is not availability",
    ):
        assert part in out


def test_lyceums_cards_are_there_with_what_was_assumed(capsys):
    """2.79 and 1.10 USD an hour for an H100, 4.29 and 1.60 for an H200, 1.59 and 0.80 for an A100."""
    rows = told(capsys, "--provider", "lyceum", "--gpus", "1")["offers"]
    prices = {(row["gpu"], row["kind"]): row["usd_per_hour"] for row in rows if "form factor" in (row["assumed"] or "")}
    assert prices == {
        ("h100-pcie-80gb", "on-demand"): 2.79, ("h100-pcie-80gb", "spot"): 1.10,
        ("h200-nvl-141gb", "on-demand"): 4.29, ("h200-nvl-141gb", "spot"): 1.60,
        ("a100-pcie-80gb", "on-demand"): 1.59, ("a100-pcie-80gb", "spot"): 0.80,
    }  # fmt: skip
    _, out, _ = run(capsys, "lyceum", "h100")
    assert "1 x h100-pcie-80gb~" in out
    assert "~ form factor not said: the slower one is assumed." in out


def test_reservations_say_when_they_pay(capsys):
    _, out, _ = run(capsys, "--kind", "reserved")
    # 9,950 USD a year at RunPod, 2.89 an hour on demand
    assert "h100-pcie-80gb at runpod pays off from 3,443 of its 8,760 hours, compared with 2.89 USD" in out


def test_what_joins_the_cards_and_the_machines(capsys):
    (row,) = {row["instance"]: row for row in told(capsys, "p5.48xlarge", "--no-spot")["offers"]}.values()
    assert (row["interconnect"], row["fabric"], row["inter_node_gbit_per_s"]) == ("nvlink4", "efa-v2", 3200)


def test_outliers_are_named(capsys):
    _, out, _ = run(capsys, "h100-pcie", "--spot")
    assert "spot*" in out
    assert "do not count on it" in out
    (row,) = told(capsys, "vast", "h100-pcie", "--spot", "--gpus", "2", "--country", "GB")["offers"]
    assert row["outlier"] == "17 % of its own on-demand price of 4.00 USD per hour"
    assert "17 % of its own" in run(capsys, "vast", "h100-pcie", "--spot", "--gpus", "2")[1]
    assert {row["outlier"] for row in told(capsys, "nebius")["offers"]} == {None}


def test_euros_say_their_rate(capsys):
    _, out, _ = run(capsys, "l4", "--eur", "--usd-per-eur", "1.25")
    assert "EUR/h" in out
    assert "1 EUR = 1.25 USD" in out


def test_vat(capsys):
    """1.29 at Lambda, with 19 %."""
    _, out, _ = run(capsys, "a10", "--provider", "lambda", "--vat", "19")
    assert "1.535" in out
    assert "with 19 % VAT" in " ".join(out.split())


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        (("h100zz",), 2, "matches nothing"),
        (("--gpu", "h1000"), 2, "nearest"),
        (("--provider", "verdo"), 2, "nearest: verda"),
        (("--country", "Atlantis"), 2, "--country"),
        (("--interconnect", "string"), 2, "--interconnect"),
        (("--gpu", "gaudi3"), 3, "no offer matches"),
        (("--max-usd", "0.001"), 3, "--max-usd leaves none"),
        (("update", "now"), 2, "allowed: nothing more"),
        (("add",), 2, "one FILE"),
        (("--eux",), 2, "nearest: --eu"),
    ],
)
def test_refusals(capsys, argv, code, part):
    got, out, err = run(capsys, *argv)
    assert (got, out) == (code, "")
    assert part in err


def test_own_prices_come_with_the_others(capsys, tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text('[[offer]]\nprovider = "lab"\ngpu = "rtx-4090"\ngpus = 2\nusd_per_kwh = 0.2\ncountry = "FR"\n')
    for _ in range(2):  # the second takes the place of the first
        code, out, _ = run(capsys, "add", str(path))
        assert (code, out.split(":")[0]) == (0, "1 offer added")
    (row,) = told(capsys, "--provider", "lab")["offers"]
    assert (row["kind"], row["exposure"], row["in_eu"], row["stale"]) == ("owned", "own", "yes", False)


LAB = """
[[offer]]
provider = "lab"
gpu = "rtx-4090"
gpus = 2
usd_per_kwh = 0.2
country = "FR"

[[offer]]
provider = "lab"
gpu = "rtx-4090"
gpus = 4
usd_per_kwh = 0.2
country = "FR"

[[offer]]
provider = "acme"
gpu = "l40s"
usd_per_hour = 0.5
"""


@pytest.fixture
def three(capsys, tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(LAB)
    code, out, _ = run(capsys, "add", str(path))
    assert code == 0
    return out


def test_add_says_what_it_added(three, capsys, tmp_path):
    assert three.startswith("3 offers added: ")
    # 2 x 450 W and half of that besides: 1.35 kW at 0.20 USD
    assert "  2 x rtx-4090 at lab, owned, 0.27 USD per hour, FR\n" in three
    assert "replaced" not in three
    assert "3 offers of before of the same machine replaced" in run(capsys, "add", str(tmp_path / "lab.toml"))[1]


def test_remove_takes_one_away_and_says_which(three, capsys):
    code, out, err = run(capsys, "remove", "lab", "rtx-4090", "--gpus", "2")
    assert (code, err) == (0, "")
    assert out.startswith("1 offer removed: ")
    assert "  2 x rtx-4090 at lab, owned, 0.27 USD per hour, FR\n" in out
    assert sorted((each.provider, each.gpus) for each in store.kept(store.OWN)) == [("acme", 1), ("lab", 4)]


def test_remove_several_only_with_all(three, capsys):
    before = store.kept(store.OWN)
    code, out, err = run(capsys, "remove", "lab")
    assert (code, out) == (2, "")
    assert "2 of your own match: 2 x rtx-4090 at lab" in err
    assert "--all" in err
    assert store.kept(store.OWN) == before
    assert run(capsys, "remove", "lab", "--all")[0] == 0
    assert [each.provider for each in store.kept(store.OWN)] == ["acme"]
    # a filter by country leaves an offer with the regions there; it is the same one
    assert run(capsys, "remove", "acme")[0] == 0
    assert store.kept(store.OWN) == ()


def test_remove_by_country(three, capsys):
    assert run(capsys, "remove", "--country", "FR", "--gpus", "4")[0] == 0
    assert len(store.kept(store.OWN)) == 2


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        ((), 2, "say which, or --all. Yours: 1 x l40s at acme"),
        (("verda",), 3, "no offer of your own matches all of that. Yours: "),
    ],
)
def test_what_remove_refuses(three, capsys, argv, code, part):
    """Offers of lists are not one's own to remove."""
    got, out, err = run(capsys, "remove", *argv)
    assert (got, out) == (code, "")
    assert part in err
    assert len(store.kept(store.OWN)) == 3


def test_remove_where_there_are_none(capsys):
    code, _, err = run(capsys, "remove", "lab")
    assert code == 3
    assert "tunecast offers add FILE" in err


def test_update_without_a_network_changes_nothing(capsys, monkeypatch):
    for name in ("TUNECAST_SKYPILOT_CATALOG", "TUNECAST_GPUHUNT_CATALOG"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    before = store.offers()
    code, out, err = run(capsys, "update")
    assert code == 5
    assert "the old offers stand" in out
    assert "as they were" in err
    assert store.offers() == before


def test_what_was_added_and_removed_for_a_program(three, capsys, tmp_path):
    (tmp_path / "lab.toml").write_text(LAB)
    added = json.loads(run(capsys, "add", str(tmp_path / "lab.toml"), "--json")[1])
    assert added["schema"] == "tunecast.offers-own/1" and added["added"][0]["provider"] == "lab"
    removed = json.loads(run(capsys, "remove", "lab", "--all", "--json")[1])
    assert [each["provider"] for each in removed["removed"]] == ["lab", "lab"]


def test_a_table_whose_first_line_is_broken_is_refused(capsys, tmp_path):
    path = tmp_path / "own.csv"
    path.write_bytes(b"provider,kin\rd,gpu\n")
    code, _, err = run(capsys, "add", str(path))
    assert code == 5 and "own.csv" in err
