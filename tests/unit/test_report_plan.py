"""A plan as people see it: small ones made by hand, so that every figure can be redone on paper."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from itertools import combinations
from typing import Any

import pytest

from tunecast.advise.unstated import Taken
from tunecast.hardware.catalog import gpus
from tunecast.job import job_from_dict
from tunecast.market.cost import Cost, CostLine, Rate
from tunecast.market.offer import Offer
from tunecast.planning.choice import Choice, Constraints, Fleet, Money, Plan, PriceList, Refusal, Searched
from tunecast.planning.constraints import verdict
from tunecast.report.draw.markdown import plain
from tunecast.report.draw.text import Terminal
from tunecast.report.page.document import Provenance
from tunecast.report.plan.markdown import markdown
from tunecast.report.plan.notes import price_age, refusals
from tunecast.report.plan.page import page
from tunecast.report.plan.plot import money_axis, plot, points, time_axis
from tunecast.report.plan.svg import SCREENS
from tunecast.report.plan.text import short, text
from tunecast.report.plan.words import amount, amounts, answer, bill, changes
from tunecast.report.run.time import span
from tunecast.units import GIB

JOB = job_from_dict({"model": "gpt2", "method": "lora", "id": "mine", "data": {"tokens": 10_000_000}})
TODAY = date(2026, 11, 15)
BASE = Offer(
    "lambda", "on-demand", "h100-sxm-80gb", 1, 3.0, date(2026, 11, 1), "skypilot/lambda", ("us-east-1",), ("US",)
)
HOSTILE = '<script>alert(1)</script>|`@me` [x](http://e) $a$ #1 \x1b[31m"'


def choice(gpu: str, cards: int, hours: float, usd: float, provider: str = "lambda", **more: Any) -> Choice:
    """Takes a tenth less to a tenth more of its time; 3 % of its cost is storage."""
    offer = replace(BASE, gpu=gpu, gpus=cards, provider=provider, usd_per_hour=usd / hours)
    cost = Cost(
        (CostLine("training", 0.97 * usd, "training"), CostLine("storage", 0.03 * usd, "2 GB")),
        hours * 3600,
        hours * 3600,
        0,
    )
    fields: dict[str, Any] = {
        "fleet": Fleet(gpus()[gpu], cards, 1, offer),
        "job": JOB,
        "changes": {},
        "device_bytes": 20 * GIB,
        "device_range_bytes": (19 * GIB, 21 * GIB),
        "capacity_bytes": 25 * GIB,
        "step_s": 1.0,
        "total_s": hours * 3600,
        "total_range_s": (hours * 3240, hours * 3960),
        "usd_range": (0.9 * usd, 1.1 * usd),
        "bill": cost,
        "tokens": 30e6,
    }
    return Choice(**fields | more)


CHEAP = choice(
    "l4", 1, 40.0, 24.0, changes={"hardware.gpu": "l4", "micro_batch": 2, "kernels": ("liger",)}, why="why it"
)
MIDDLE = choice("h100-sxm-80gb", 1, 4.2, 30.0)
FAST = choice("h100-sxm-80gb", 8, 0.6, 60.0)
DEAR = choice("a100-sxm-80gb", 1, 9.0, 70.0)


def plan(**more: Any) -> Plan:
    fields: dict[str, Any] = {
        "job": JOB,
        "as_of": TODAY,
        "picks": {"cheapest": CHEAP, "fastest": FAST, "balanced": MIDDLE, "deadline": None},
        "pareto": (CHEAP, MIDDLE, FAST),
        "choices": (CHEAP, MIDDLE, FAST, DEAR),
        "refused": (Refusal("1 x t4", "too small", "method: qlora"), Refusal("2 x t4", "too small", "method: qlora")),
        "searched": Searched(1000, 900, 40, 0.5),
        "assumptions": ("10,000,000 tokens are taken",),
    }
    return Plan(**fields | more)


def told(of: Plan, width: int = 100, *, unicode: bool = True, details: bool = True) -> str:
    return text(of, Terminal(width, unicode=unicode), details=details)


def test_the_first_line_is_the_answer():
    line = told(plan()).splitlines()[0]
    assert line == "Rent 1 x l4 at lambda (US), on demand: 40 h (36 to 44 h), $24.00 (21.60 to 26.40)"


def test_a_deadline_is_answered_first():
    made = plan(
        picks={"cheapest": CHEAP, "fastest": FAST, "balanced": MIDDLE, "deadline": MIDDLE}, limits=Constraints(21600.0)
    )
    lines = told(made).splitlines()
    assert lines[0].startswith("Rent 1 x h100-sxm-80gb at lambda (US), on demand: 4 h 12 min (3.8 to 4.6 h), $30.00")
    assert lines[1].startswith("  the deadline and balanced option, within 6 h, for mine: gpt2, lora")


def test_the_picks_as_a_table():
    lines = told(plan()).splitlines()
    begin = next(index for index, line in enumerate(lines) if "memory per card" in line)
    assert lines[begin : begin + 5] == [
        "            rent                   memory per card   time          cost",
        "  cheapest  1 x l4                 20.0 of 25.0 GiB  40 h          $24.00",
        "            lambda, on demand, US  5.0 free (20 %)   36 to 44 h    21.60 to 26.40",
        "    set micro_batch: 2, kernels: [liger]",
        "    why it",
    ]


def test_a_pick_that_may_not_fit_says_so():
    risky = replace(CHEAP, device_range_bytes=(19 * GIB, 26 * GIB), risk="fits at the low end only")
    made = plan(picks={"cheapest": risky}, pareto=(risky,), choices=(risky,))
    for shown in (told(made), page(made), markdown(made)):
        assert "may not fit" in shown
        assert "fits at the low end only" in shown


@pytest.mark.parametrize("width", [72, 80, 100, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_the_terminal(width, unicode):
    long = choice("h100-sxm-80gb", 8, 0.6, 60.0, provider="a-provider-with-a-name-as-long-as-anyone-could-want-it")
    for made in (plan(), plan(picks={"cheapest": CHEAP, "fastest": long}, pareto=(CHEAP, MIDDLE, long))):
        shown = told(made, width, unicode=unicode)
        assert max(map(len, shown.splitlines())) <= width
        assert unicode or shown.isascii()


def test_a_pipe_gets_no_colours_and_a_terminal_does():
    assert "\x1b" not in told(plan())
    assert "\x1b[1mRent" in text(plan(), Terminal(100, colour=True))


def test_euros_and_tax():
    money = Money(eur=True, rate=Rate(1.2, date(2026, 11, 1), "as given"), vat_fraction=0.19)
    shown = told(plan(money=money))
    assert "EUR 20.00 (18.00 to 22.00)" in shown.splitlines()[0]
    assert "with 19 % VAT; 1 EUR = 1.2 USD (2026-11-01: as given)" in " ".join(shown.split())
    # 0.6 USD an hour: 0.5 EUR, and 19 % more
    assert "40 h of one machine at EUR 0.59 per hour" in shown


def test_every_line_of_the_cost_and_its_sum():
    lines = bill(CHEAP, Money())
    assert [(line.name, line.amount) for line in lines] == [
        ("training", "23.28"),
        ("storage", "0.72"),
        ("total", "$24.00"),
    ]
    shown = told(plan())
    for line in ("training   23.28   97.0 %", "storage     0.72    3.0 %  2 GB", "total     $24.00  100.0 %"):
        assert line in shown
    # 30 million tokens in 3 epochs
    for line in ("per epoch           $8.00", "per million tokens  $0.80", "weekly for a year   $1,248"):
        assert line in shown


def test_amounts_have_sensible_digits():
    assert [amount(usd, Money()) for usd in (0.0, 0.0312, 0.5, 14.31, 999.4, 12_345.6)] == [
        "$0.00", "$0.031", "$0.50", "$14.31", "$999.40", "$12,346",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("low_s", "high_s", "told"),
    [(0.5, 1.25, "0.5 to 1.2 s"), (90, 110, "90 to 110 s"), (1986, 3150, "33 to 52 min"),
     (13_800, 16_800, "3.8 to 4.7 h"), (7300, 7400, "2.0 to 2.1 h"), (69_000, 337_000, "19 to 94 h"),
     (400_000, 900_000, "4.6 to 10.4 d")],
)  # fmt: skip
def test_ranges_of_time_in_one_unit(low_s, high_s, told):
    assert span(low_s, high_s) == told


def test_only_what_the_machine_does_not_tell_is_a_change():
    assert changes(CHEAP) == ["micro_batch: 2", "kernels: [liger]"]


def test_the_plot_has_the_front_by_letters_and_the_rest_as_dots():
    lines = plot(plan(), Terminal(width=80))
    drawn = "\n".join(line.partition("│")[2] or line.partition("┤")[2] for line in lines[:-2])
    assert sorted(re.findall(r"[a-z·]", drawn)) == ["a", "b", "c", "·"]
    rows = {mark: next(row for row, line in enumerate(drawn.splitlines()) if mark in line) for mark in "abc·"}
    columns = {mark: line.index(mark) for mark in "abc·" for line in drawn.splitlines() if mark in line}
    assert rows["a"] > rows["b"] > rows["c"] > rows["·"], "the cheaper the lower"
    assert columns["c"] < columns["b"] < columns["·"] < columns["a"], "the faster the further left"


def test_points_that_fall_together_are_both_drawn():
    twin = replace(CHEAP, total_s=CHEAP.total_s * 0.9999, bill=replace(CHEAP.bill, wall_s=1.0))
    made = plan(pareto=(CHEAP, twin, FAST), choices=())
    assert [point.mark for point in points(made) if point.mark] == ["a", "b", "c"]
    lines = plot(made, Terminal(width=80))
    assert any("ab" in line or "ba" in line for line in lines)


def test_a_single_point_is_no_plot():
    alone = plan(picks={"cheapest": CHEAP}, pareto=(CHEAP,), choices=(CHEAP,))
    assert plot(alone, Terminal()) == []
    assert "against time" not in told(alone)
    assert "<svg" not in page(alone)


@pytest.mark.parametrize("low", [0.003, 1.0, 42.0, 1000.0, 3_500.0, 80_000.0, 3e6])
@pytest.mark.parametrize("factor", [1.0, 1.3, 3.0, 20.0, 1000.0, 1e6])
def test_axes_have_ticks_in_order_and_within(low, factor):
    for axis in (time_axis([low, low * factor]), money_axis([low, low * factor], "$")):
        values = [tick.value for tick in axis.ticks]
        assert 2 <= len(values) <= 8
        assert values == sorted(set(values))
        assert axis.low < low and low * factor < axis.high
        assert all(0 <= axis.place(value) <= 1 for value in values)
        assert len({tick.label for tick in axis.ticks}) == len(values)


def test_refusals_with_one_reason_are_one():
    assert refusals(plan()) == [(("1 x t4", "2 x t4"), "too small", "method: qlora")]
    assert "1 x t4, 2 x t4: too small\n      what would help: method: qlora" in told(plan())


def test_what_is_not_shown_is_counted():
    many = tuple(Refusal(f"{n} x t4", f"reason {n}", "none") for n in range(1, 12))
    shown = told(plan(refused=many))
    assert "reason 8\n" in shown and "reason 9\n" not in shown
    assert "3 more reasons; --html and --json have them all" in shown
    alike = tuple(Refusal(f"{n} x t4", "too small", "none") for n in range(1, 12))
    assert "6 x t4 and 5 more: too small" in told(plan(refused=alike))


def test_the_age_of_a_price():
    assert price_age(plan(), BASE) == "seen 2026-11-01, 14 days ago"
    old = replace(BASE, dated=date(2026, 1, 1))
    assert price_age(plan(), old) == "seen 2026-01-01, 10 months ago"


def test_the_age_of_the_whole_list_is_one_line():
    stale = " ".join(told(plan(prices=PriceList(date(2026, 8, 22), left_out_old=7))).split())
    assert "Prices as of 2026-08-22, 85 days ago; tunecast offers update fetches newer ones; 7 older offers" in stale
    assert "A price is not availability" in stale
    assert "fetches newer ones" not in told(plan(prices=PriceList(date(2026, 11, 12))))


def test_ones_own_machine_is_not_rented():
    own = replace(CHEAP, fleet=replace(CHEAP.fleet, offer=replace(BASE, provider="lab", kind="owned", gpu="l4")))
    made = plan(picks={"cheapest": own}, pareto=(own,), choices=(own,))
    assert answer(made, own).startswith("Use 1 x l4, your own: 40 h")
    assert "Provider" not in told(made)


def test_nothing_found_is_said_with_the_reasons():
    none = plan(picks=dict.fromkeys(("cheapest", "fastest", "balanced", "deadline")), pareto=(), choices=())
    for shown in (told(none), page(none), markdown(none)):
        assert "No machine to rent was found" in shown
        assert "too small" in shown


def test_what_costs_too_much_is_shown_with_the_limit():
    """The front is there all the same."""
    over = plan(picks=dict.fromkeys(("cheapest", "fastest", "balanced", "deadline")), limits=Constraints(max_usd=0.5))
    least = over.pareto[0]
    for shown in (told(over), page(over), markdown(over).replace("<span>$</span>", "$")):
        assert "Nothing costs at most $0.50" in shown
        assert f"the cheapest, {least.hardware} at " in shown
        assert "no other is both cheaper and faster" in shown


class Outline(HTMLParser):
    """Elements as they open and close."""

    void = ("meta", "wbr", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name.startswith("on") or name in ("href", "src") for name, _ in attrs)
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-2:] == ["g", "title"]:
            self.titles.append(data)


def outline(html: str) -> Outline:
    parsed = Outline()
    parsed.feed(html)
    assert parsed.open == []
    return parsed


def test_the_page_is_whole_and_runs_only_its_own_script():
    html = page(plan())
    parsed = outline(html)
    assert parsed.seen.count("script") == 1
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\"" in html
    assert not re.search(r"url\(|@import", html)
    assert "Rent 1 x l4 at lambda (US), on demand" in html
    for told in ("A price is not availability", "10,000,000 tokens are taken", "too small", "us controlled", "23.28"):
        assert told in html


def test_each_point_of_the_picture_tells_what_it_is():
    titles = outline(page(plan())).titles
    assert len(titles) == 4
    assert "1 x l4 (cheapest)\nlambda, on demand, US\n40 h (36 to 44 h)\n$24.00 (21.60 to 26.40)\n" in "".join(titles)


def test_the_page_says_how_to_make_it_again():
    made = Provenance("tunecast plan job.yaml --html p.html", "9.9", TODAY, "model: gpt2\nmethod: lora")
    html = page(plan(), made)
    assert "tunecast 9.9, 2026-11-15" in html
    assert '<pre class="mono">tunecast plan job.yaml --html p.html\n</pre>' in html
    assert '<pre class="mono">model: gpt2\nmethod: lora\n</pre>' in html
    assert "Make this page again" not in page(plan())


def test_the_page_tells_what_was_not_given():
    made = plan(taken=(Taken("lora.rank", 16, "TRL's default", {}),))
    assert "<h2>Not given, so taken</h2><ul><li>rank 16 (TRL&#x27;s default)</li></ul>" in page(made)
    assert "Not given, so taken" not in page(plan())


def test_settings_can_be_copied_into_a_file():
    assert '<pre class="mono">hardware:\n  gpu: l4\nmicro_batch: 2\nkernels: [liger]\n</pre>' in page(plan())


def test_refusals_are_folded_unless_they_are_all_there_is():
    assert "<details><summary>Ruled out: 1 x t4, 2 x t4</summary>" in page(plan())
    none = plan(picks=dict.fromkeys(("cheapest", "fastest", "balanced", "deadline")), pareto=(), choices=())
    assert '<details open=""><summary>Ruled out: 1 x t4, 2 x t4</summary>' in page(none)
    many = tuple(Refusal(f"{n} x t4", "too small", "none") for n in range(1, 12))
    assert "Ruled out: 1 x t4, 2 x t4, 3 x t4, 4 x t4 and 7 more" in page(plan(refused=many))


def test_tables_sort_by_what_they_mean():
    """`9 h` stands after `40 min` as text, and `$9.00` after `$24.00`."""
    html = page(plan())
    rows = html.partition('class="blocks all sortable"')[2].partition("</table>")[0].split("<tr>")[2:]
    assert [re.findall(r'data-value="([^"]*)"', row)[:2] for row in rows] == [
        ["24", "144000"], ["30", "15120"], ["60", "2160"], ["70", "32400"],
    ]  # fmt: skip


def test_a_range_that_shows_no_range_is_left_out():
    fixed = replace(CHEAP, usd_range=(24.0, 24.001))
    assert answer(plan(), fixed).endswith("$24.00")
    assert amounts(16.0, 16.0, Money()) == "" and amounts(16.0, 16.01, Money()) == "16.00 to 16.01"


def labels(html: str, style: str) -> list[tuple[str, dict[str, str]]]:
    """(text, attributes) of those of one range of widths."""
    group = re.search(rf'<g class="labels {style}"[^>]*>(.*?)</g>', html, re.S)
    assert group is not None
    return [
        (label, dict(re.findall(r'([a-z-]+)="([^"]*)"', attributes)))
        for attributes, label in re.findall(r"<text ([^>]*)>([^<]*)</text>", group[1])
    ]


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.style)
@pytest.mark.parametrize("apart", [1.001, 1.02, 1.1, 1.3])
def test_labels_never_cover_each_other(screen, apart):
    """Thirty choices, each a little faster and dearer than the one before."""
    crowd = [choice("h100-sxm-80gb", 1 + n % 8, 30 / apart**n, 20 * apart**n) for n in range(30)]
    names = {"cheapest": crowd[0], "fastest": crowd[-1], "balanced": crowd[15], "deadline": crowd[1]}
    found = labels(page(plan(picks=names, pareto=tuple(crowd), choices=tuple(crowd))), screen.style)
    assert found
    for width in screen.widths:
        boxes = []
        for label, at in found:
            long = 6.0 * len(label)  # an 11 px sans serif is narrower on average
            left = float(at["x"].rstrip("%")) * width / 100 + float(at["dx"])
            left -= long * {"start": 0, "middle": 0.5, "end": 1}[at["text-anchor"]]
            top = float(at["y"].rstrip("%")) * screen.height / 100 + float(at["dy"]) - 11
            assert left >= 0 and left + long <= width
            boxes.append((left, top, left + long, top + 14))
        for one, other in combinations(boxes, 2):
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_every_point_of_the_front_is_named_below_the_picture():
    html = page(plan())
    listed = re.findall(r'<li><i class="letter">(.)</i>(.*?)</li>', html)
    assert [letter for letter, _ in listed] == ["a", "b", "c"]
    assert "cheapest: " in listed[0][1] and "1 x l4" in listed[0][1] and "40 h (36 to 44 h), $24.00" in listed[0][1]
    for title in ("cost in USD, logarithmic", "time from the order to the saved model, logarithmic"):
        assert title in html


def test_names_from_price_lists_stay_text():
    evil = replace(
        CHEAP, fleet=replace(CHEAP.fleet, offer=replace(BASE, provider=HOSTILE, via=HOSTILE, source=HOSTILE))
    )
    evil = replace(evil, why=HOSTILE, risk=HOSTILE)
    made = plan(
        picks={"cheapest": evil}, pareto=(evil, FAST), choices=(evil, FAST),
        refused=(Refusal(HOSTILE, HOSTILE, HOSTILE),), assumptions=(HOSTILE,),
        warnings=(HOSTILE,), notes=(HOSTILE,), asked=(HOSTILE,),
    )  # fmt: skip
    html = page(made, Provenance(HOSTILE, HOSTILE, TODAY, HOSTILE, HOSTILE))
    assert outline(html).seen.count("script") == html.count("<script") == 1
    assert "\x1b" not in html and "\x1b" not in told(made) + markdown(made)
    written = markdown(made)
    assert "<script" not in written
    assert not re.search(r"(?<!\\)[\[`|]", re.sub(r"^\|.*\|$", "", "\n".join(_prose(written)), flags=re.MULTILINE))
    assert "@me" not in written and "http://" not in written and "#1" not in written


def _prose(written: str) -> list[str]:
    """Without tables' own bars and the code spans of settings."""
    return [re.sub(r"(?<!\\)`[^`]*(?<!\\)`", "", line) for line in written.splitlines() if not line.startswith("|")]


def test_markdown_keeps_its_columns():
    evil = replace(CHEAP, fleet=replace(CHEAP.fleet, offer=replace(BASE, provider="a|b")))
    written = markdown(plan(picks={"cheapest": evil, "fastest": FAST}, pareto=(evil, FAST)))
    tables = [line for line in written.splitlines() if line.startswith("|")]
    head = tables.index("|  | rent | memory per card | time | cost |")
    for line in tables[head : head + 4]:
        assert len(re.findall(r"(?<!\\)\|", line)) == 6


@pytest.mark.parametrize(
    ("given", "written"),
    [("a_b *c*", r"a\_b \*c\*"), ("<b>&", "&lt;b&gt;&amp;"), ("www.x.y", "w<!-- -->ww.x.y"), ("a@b", "a@<!-- -->b"),
     ("https://x", "https:<!-- -->//x"), ("#12", "#<!-- -->12"), ("$1", "<span>$</span>1")],
)  # fmt: skip
def test_markdown_that_stays_text(given, written):
    assert plain(given) == written


def test_markdown_says_the_answer_first():
    written = markdown(plan())
    assert written.startswith("**Rent 1 x l4 at lambda (US), on demand: 40 h (36 to 44 h), <span>$</span>24.00")
    assert "| **fastest** | 8 x h100-sxm-80gb, lambda, on demand, US | 20.0 of 25.0 GiB, 5.0 free (20 %) |" in written
    assert "set `micro_batch: 2`, `kernels: [liger]`. Why it." in written
    assert written.count("<details>") == written.count("</details>") == 7


def test_in_one_line():
    line = short(plan())
    assert line.startswith("Rent 1 x l4 at lambda (US), on demand: 40 h (36 to 44 h), $24.00 (21.60 to 26.40)")
    assert line.count("\n") == 1


def test_a_plan_without_an_answer_names_what_comes_nearest():
    """Of 405B in full it named six of the smallest cards, and not the eight that lack a factor of two."""
    small = [
        Refusal(f"{n} x t4", "too small", "more cards", too_small=True, too_small_by=400.0 / n) for n in range(1, 9)
    ]
    refused = (Refusal("1 x mi300x", "not allowed", "allow it"), *small)
    failure = verdict(plan(choices=(), refused=refused))
    lines = str(failure).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:4]] == ["8 x t4", "7 x t4", "6 x t4"]
    assert lines[-1] == "  and 3 more"
