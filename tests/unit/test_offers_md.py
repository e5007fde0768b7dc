"""What compliance asks of one offer, and `offers --md`."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from tunecast.cli import main as cli
from tunecast.market.offer import Offer
from tunecast.report.lists.offer_md import offer_markdown

TODAY = date(2026, 11, 16)
OFFER = Offer(
    *("verda", "on-demand", "h200-sxm-141gb", 8, 27.12, date(2026, 8, 22), "skypilot/verda", ("FIN-03",), ("FI",)),
    instance="8H200.141S.176V",
)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def row(page, name):
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")][1:]


def section(page, title):
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_whose_it_is_where_the_data_are_and_who_says_so():
    page = offer_markdown(OFFER, "a list", TODAY)
    assert "Not legal advice" in page
    answer, source = row(page, "company")
    assert answer == "Verda (formerly DataCrunch Oy), seat FI"
    assert "verda.com/privacy-policy" in source
    assert "2026-11-15" in source
    assert "not proof that there is none" in row(page, "US law")[0]
    assert row(page, "country of the data") == ["FI (FIN-03)", "the price list names the machine in this region"]
    assert row(page, "in the EU")[0] == "yes (EU)"


def test_what_no_source_confirms_is_among_what_is_not_known():
    page = offer_markdown(OFFER, "a list", TODAY)
    assert row(page, "certificates") == ["iso27001", "no source at hand confirms it"]
    unknown = section(page, "Not known")
    assert row(page, "egress") == ["0 USD per GB", "no source at hand confirms it"]
    for part in ("certificates: iso27001, but no source", "parent: not known", "sub-processors: not known", "driver"):
        assert part in unknown


def test_a_certificate_with_a_source_and_its_day():
    nebius = replace(OFFER, provider="nebius", regions=("eu-north1",))
    answer, source = row(offer_markdown(nebius, "a list", TODAY), "certificates")
    assert answer == "iso27001, soc2"
    assert "docs.nebius.com/legal (looked at 2026-11-15)" in source
    assert "certificates" not in section(offer_markdown(nebius, "a list", TODAY), "Not known")


def test_a_broker_is_who_the_contract_is_with():
    sold = replace(OFFER, provider="scaleway", via="shadeform")
    page = offer_markdown(sold, "a list", TODAY)
    assert row(page, "company (sells it: your contract)")[0].startswith("Shadeform, Inc.")
    assert row(page, "company (runs it)")[0].startswith("Scaleway SAS")
    assert "CLOUD Act" in row(page, "US law (sells it: your contract)")[0]
    assert row(page, "sub-processors")[0].startswith("scaleway, which runs the machine")


def test_a_marketplace_has_hosts():
    page = offer_markdown(replace(OFFER, provider="vast.ai", regions=("CZ",), countries=("CZ",)), "a list", TODAY)
    assert "whom you have no contract with" in row(page, "sub-processors")[0]


def test_a_place_that_is_listed_is_not_proven_and_one_in_words_is_no_country():
    runpod = replace(OFFER, provider="runpod", regions=("CZ",), countries=("CZ",), placed="listed")
    assert row(offer_markdown(runpod, "a list", TODAY), "country of the data")[1].startswith("not proven")
    assert row(offer_markdown(runpod, "a list", TODAY), "in the EU")[0] == "not known (EU)"
    lyceum = replace(OFFER, provider="lyceum", regions=("eu",), countries=("",))
    answer, source = row(offer_markdown(lyceum, "a list", TODAY), "country of the data")
    assert answer == "country not known (eu); Berlin or Zurich, not said which"
    assert "lyceum.technology" in source


def test_nobody_is_known_of_a_seller_nobody_looked_up():
    page = offer_markdown(replace(OFFER, provider="hotaisle", regions=(), countries=(), placed="listed"), "a", TODAY)
    assert row(page, "company")[0] == "not known"
    assert row(page, "country of the data")[0] == "not known"


def test_ones_own_machine():
    page = offer_markdown(replace(OFFER, provider="lab", kind="owned", source="own"), "own", TODAY)
    assert row(page, "company") == ["your own machine", "you"]
    assert row(page, "tenancy")[0] == "dedicated host"


def test_names_stay_text():
    evil = replace(OFFER, instance="<script>", regions=("a|b](http://x) @you",), countries=("FI",))
    page = offer_markdown(evil, "*list*", TODAY, outlier="`code` $1$")
    assert "<script>" not in page
    assert r"a\|b\](http:<!-- -->//x) @<!-- -->you" in page
    assert r"\*list\*" in page


def test_the_command_writes_it_for_one_offer(capsys, tmp_path):
    path = tmp_path / "offer.md"
    argv = ["offers", "verda", "h200", "--gpus", "8", "--no-spot", "--md", str(path)]
    assert cli.main(argv) == 0
    assert "verda: 8 x h200-sxm-141gb" in capsys.readouterr().out
    assert path.read_text("utf-8").startswith("# 8 x h200-sxm-141gb at verda, on-demand, ")


def test_not_for_several(capsys, tmp_path):
    path = tmp_path / "offer.md"
    assert cli.main(["offers", "h200", "--md", str(path)]) == 2
    assert "the page is of one. Narrow them down" in capsys.readouterr().err
    assert not path.exists()


def test_where_it_cannot_be_written(capsys, tmp_path):
    assert cli.main(["offers", "verda", "--md", str(tmp_path / "no" / "offer.md")]) == 5
    assert "there is no folder" in capsys.readouterr().err
