"""Forty plans, over sizes, methods and constraints, checked for everything a plan may not say: a pick beaten by what is
shown beside it, a price one cannot sign for, a machine too small, a limit that is not kept, one answer in the text and
another on the page."""

from __future__ import annotations

import html
import re
from datetime import date
from functools import cache
from typing import cast

import pytest

from tunecast.cli.filters import options_from
from tunecast.cli.plan import parser
from tunecast.door.plan import Planner, PlanOptions
from tunecast.door.read import read
from tunecast.errors import TunecastError
from tunecast.job.flags import overrides_from
from tunecast.market.offer import OWNED
from tunecast.market.outliers import outliers
from tunecast.market.provider import provider
from tunecast.market.store import offers
from tunecast.planning.choice import Choice, Plan
from tunecast.report.draw.text import Terminal
from tunecast.report.plan.markdown import markdown
from tunecast.report.plan.page import page
from tunecast.report.plan.text import text
from tunecast.report.plan.words import amount

DAY = "--as-of 2026-11-15"
LORA = "--method lora --targets all-linear --weights-dtype bfloat16"
QLORA = "--method qlora --targets all-linear --weights-dtype bfloat16"
PLANS = (
    f"llama-3.1-8b {LORA} --seq-len 2048",
    "llama-3.2-1b --method full --seq-len 2048 --samples 10000",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 20000 --eu --within 6h",
    "llama-3.1-8b --method qlora --seq-len 2048",
    f"llama-3.1-8b {QLORA} --seq-len 4096 --samples 50000 --micro-batch 4 --grad-accum 16",
    "llama-3.1-8b --method full --seq-len 4096 --samples 50000 --micro-batch 4 --grad-accum 16",
    f"llama-2-13b {LORA} --seq-len 2048 --samples 10000",
    f"qwen2.5-32b {LORA} --seq-len 4096 --samples 10000",
    f"llama-3.1-70b {QLORA} --seq-len 2048 --samples 10000 --eu --no-cloud-act",
    f"llama-3.1-70b {QLORA} --seq-len 4096 --samples 10000 --micro-batch 2 --grad-accum 8",
    f"llama-3.1-70b {LORA} --seq-len 4096 --samples 5000 --eu",
    "llama-3.1-70b --method full --seq-len 4096 --samples 10000 --micro-batch 1 --grad-accum 64",
    f"llama-3.1-405b {QLORA} --seq-len 2048 --samples 2000",
    f"llama-3.1-8b {LORA} --seq-len 131072 --samples 200 --micro-batch 1 --grad-accum 8",
    "llama-3.1-8b --method full --seq-len 4096 --samples 80000 --micro-batch 8 --grad-accum 8",
    f"llama-3.1-8b {LORA} --seq-len 512 --samples 500",
    f"mistral-7b {LORA} --seq-len 2048 --samples 10000 --vendor amd",
    f"llama-3.1-70b {QLORA} --seq-len 2048 --samples 10000 --within 2h",
    f"llama-3.1-70b {QLORA} --seq-len 2048 --samples 10000 --max-usd 3",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 10000 --certified iso27001 --eu",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 10000 --provider lyceum",
    f"llama-3.1-70b {LORA} --seq-len 2048 --samples 5000 --provider lyceum --eur --vat 19",
    f"mixtral-8x7b {QLORA} --dropout 0 --seq-len 2048 --samples 5000",
    f"qwen3-30b-a3b {LORA} --dropout 0 --seq-len 2048 --samples 5000",
    f"gemma-3-4b {QLORA} --seq-len 2048 --samples 10000 --eu",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 10000 --kind reserved --provider runpod",
    f"llama-3.1-8b {QLORA} --seq-len 2048 --samples 10000 --gpu rtx-4090",
    f"qwen2.5-32b {QLORA} --seq-len 2048 --samples 20000 --marketplace",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 5000 --provider lyceum --within 5m",
    f"llama-3.1-70b {QLORA} --seq-len 2048 --samples 10000 --spot",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 10000 --country DE --country CH",
    f"llama-3.1-8b {QLORA} --stack unsloth --seq-len 2048 --samples 5000",
    "qwen3-0.6b --method full --seq-len 1024 --samples 2000 --no-spot",
    f"llama-3.1-70b {LORA} --seq-len 32768 --samples 500 --micro-batch 1 --grad-accum 8",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 20000 --runs 8 --within 24h",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 20000 --spot --marketplace --max-age 30",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 20000 --exclude-provider digitalocean --exclude-provider runpod",
    f"phi-4 {LORA} --seq-len 4096 --samples 10000 --no-cloud-act",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 20000 --within 1h --max-usd 5",
    f"llama-3.1-8b {LORA} --seq-len 2048 --samples 20000 --nodes-up-to 4",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@cache
def made(line: str) -> tuple[Plan, TunecastError | None]:
    arguments = parser().read([*line.split(), *DAY.split(), "--quiet"])
    options = cast(PlanOptions, options_from(arguments, PlanOptions.__annotations__))
    plan = Planner(read(arguments.source, overrides_from(arguments)), options).plan(unstated=True)
    return plan, plan.failure


def shown(plan: Plan) -> list[Choice]:
    return list({id(each): each for each in (*plan.pareto, *plan.choices, *filter(None, plan.picks.values()))}.values())


def words_of(plan: Plan) -> dict[str, str]:
    """Text, Markdown and page without markup and line breaks."""
    pages = {"text": text(plan, Terminal(100)), "markdown": markdown(plan), "page": page(plan)}
    bare = {name: re.sub(r"<[^>]*>", "", of).replace("\\", "") for name, of in pages.items()}
    return {name: " ".join(html.unescape(of).split()) for name, of in bare.items()}


every = pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=str(number), marks=[pytest.mark.long] if number % 4 else [])
        for number, line in enumerate(PLANS)
    ],
)
"""One in four with every change."""


def test_there_are_forty() -> None:
    assert len(set(PLANS)) == 40


@every
def test_picks_front_and_choices_are_one_set(line: str) -> None:
    plan, failed = made(line)
    picks = [each for each in plan.picks.values() if each is not None]
    assert picks or failed is not None
    for pick in picks:
        assert any(pick is each for each in plan.pareto)
        for other in (*plan.pareto, *plan.choices):
            assert not (other.total_usd < pick.total_usd and other.total_s < pick.total_s), other.hardware
    if picks:
        assert plan.picks["cheapest"].total_usd == min(each.total_usd for each in plan.pareto)
        assert plan.picks["cheapest"].total_usd <= 1.01 * min(each.total_usd for each in shown(plan))
        assert plan.picks["fastest"].total_s == min(each.total_s for each in plan.pareto)
        assert plan.picks["fastest"].total_s <= 1.01 * min(each.total_s for each in shown(plan))
    for one in plan.pareto:
        for other in plan.pareto:
            assert one is other or not (other.total_usd <= one.total_usd and other.total_s <= one.total_s)


@every
def test_what_may_not_fit_is_left_out_or_marked_wherever_it_is_shown(line: str) -> None:
    plan, _ = made(line)
    surely = {each.fits_surely for each in shown(plan)}
    assert surely == {True} or surely == {False}, "what fits for sure is not mixed with what may not"
    said = words_of(plan)
    if surely == {False}:
        assert all("may not fit" in of for of in said.values())
    for choice in filter(None, plan.picks.values()):
        if not choice.validated:
            assert all("not validated" in of and choice.evidence in of for of in said.values())
    if plan.best is not None and not plan.best.validated:
        measured = [each.choice for each in plan.beside if each.kind == "validated"]
        assert all(each.validated and each.fits_surely for each in measured)


@every
def test_everything_shown_can_be_signed_for(line: str) -> None:
    plan, _ = made(line)
    odd = outliers([offer for offer in offers() if offer.dated <= date(2026, 11, 15)])
    cheap = {(offer.provider, offer.kind, offer.gpu, offer.gpus, offer.usd_per_hour) for offer in odd}
    for each in shown(plan):
        offer = each.fleet.offer
        assert offer.kind == "on-demand" or f"--{offer.kind}" in line or f"--kind {offer.kind}" in line
        if "--marketplace" not in line and f"--provider {offer.provider}" not in line:
            for party in filter(None, (offer.provider, offer.via)):
                assert provider(party).entity and not provider(party).marketplace
        most = 30 if offer.kind == "spot" else 180
        found = re.search(r"--max-age (\d+)", line)
        assert (plan.prices.listed - offer.dated).days <= (int(found[1]) if found else most)
        assert (offer.provider, offer.kind, offer.gpu, offer.gpus, offer.usd_per_hour) not in cheap
        if offer.kind == "reserved":
            assert each.total_usd >= offer.usd_per_hour * offer.term_hours
        assert f"--exclude-provider {offer.provider}" not in line
        if "--eu" in line.split():
            assert offer.placed == "proven" and offer.countries


@every
def test_the_machine_has_what_the_job_needs(line: str) -> None:
    plan, _ = made(line)
    for each in shown(plan):
        offer = each.fleet.offer
        if each.ram_bytes is not None and offer.ram_bytes is not None and offer.kind != OWNED:
            assert each.ram_bytes <= offer.ram_bytes
        assert each.fleet.nodes == 1 or "--nodes-up-to" in line or any("not enough" in a for a in plan.assumptions)


@every
def test_limits_are_kept_or_the_first_line_says_what_comes_nearest(line: str) -> None:
    plan, failed = made(line)
    limits = plan.limits
    first = text(plan, Terminal(400)).splitlines()[0]
    if plan.best is None:
        assert failed is not None and failed.exit_code == 4
        assert first.startswith("Nothing ") and first in text(plan, Terminal(400))
        assert all("Nothing " in of for of in words_of(plan).values())
        by_time = first.startswith("Nothing finishes")
        nearest = min(plan.pareto, key=lambda each: each.total_range_s[1] if by_time else each.total_usd)
        assert nearest.hardware in first
        return
    assert failed is None
    for each in shown(plan):
        assert limits.within_s is None or each.total_range_s[1] <= limits.within_s
        assert limits.max_usd is None or each.total_usd <= limits.max_usd
    assert first.startswith("Rent ") and plan.best.hardware in first


@every
def test_text_page_and_markdown_say_the_same(line: str) -> None:
    plan, _ = made(line)
    said = words_of(plan)
    for each in plan.pareto:
        assert all(each.hardware in of and amount(each.total_usd, plan.money) in of for of in said.values())
    if plan.best is not None:
        for beside in plan.beside:
            assert all(amount(beside.choice.total_usd, plan.money) in of for name, of in said.items() if name != "text")
            if beside.kind != "validated":
                assert beside.choice.total_usd < plan.best.total_usd
    assert len(text(plan, Terminal(100)).splitlines()) <= 80
    assert text(plan, Terminal(100)) != text(plan, Terminal(100), details=True)


@every
def test_lines_add_up_and_figures_lie_in_their_ranges(line: str) -> None:
    plan, _ = made(line)
    for each in shown(plan):
        assert sum(part.usd for part in each.cost.lines) == pytest.approx(each.total_usd)
        for value, (low, high) in (
            (each.total_usd, each.usd_range),
            (each.total_s, each.total_range_s),
            (each.device_bytes, each.device_range_bytes),
        ):
            assert low <= value <= high
    for pick in filter(None, plan.picks.values()):
        assert pick.prediction is not None and pick.kwh is not None
        assert (pick.co2_kg is None) == (not pick.fleet.offer.known_countries or "" in pick.fleet.offer.countries)
    if plan.best is not None:
        assert all(0 < each.usd < plan.best.total_usd for each in plan.savings)
