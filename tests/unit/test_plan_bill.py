"""Bills and picks of a plan, on numbers one can redo by hand."""

from __future__ import annotations

from datetime import date
from types import SimpleNamespace

import pytest

from tunecast.job.mapping import job_from_dict
from tunecast.offers.offer import Offer
from tunecast.plan.bill import Biller, Start, Terms
from tunecast.plan.estimate import Timed
from tunecast.plan.objective import balanced, cheapest, fastest, reasons
from tunecast.plan.pareto import Front, Point
from tunecast.plan.search import Found, Search
from tunecast.predict.whole import WholeTime

DAY = date(2026, 11, 1)


def offer(usd: float = 3.6, kind: str = "on-demand", provider: str = "lambda", **fields: object) -> Offer:
    return Offer(provider, kind, "h100-sxm-80gb", 1, usd, DAY, "test", **fields)  # type: ignore[arg-type]


def timed(training_s: float = 3600.0) -> Timed:
    phases = {"provisioning": 0.0, "load": 100.0, "training": training_s}
    total = sum(phases.values())
    whole = WholeTime(total, total - 300, total + 400, phases, 360, training_s / 360, 1e6, 1e6, 0, 0)
    return Timed(training_s / 360, whole, 0, 0)


def biller(**said: float) -> Biller:
    return Biller(job_from_dict({"model": "qwen3-0.6b"}), Terms(**said))


def test_a_bill_is_seconds_times_price_and_has_a_range():
    owned = offer(kind="owned")
    bill = biller().bill(timed(), owned, nodes=2)
    assert bill.total_s == 3700
    assert bill.cost.total_usd == pytest.approx(3700 * 2 * 3.6 / 3600)
    assert bill.range_s == (3400, 4100)
    assert bill.usd_range == pytest.approx((3400 * 2 * 3.6 / 3600, 4100 * 2 * 3.6 / 3600))


def test_how_long_a_provider_takes_to_start_is_in_the_time():
    asked = biller()
    _, start = asked.terms(offer(provider="nobody-knows"))
    assert start == Start(120, 210, 300)
    bill = asked.bill(timed(), offer(provider="nobody-knows"), nodes=1)
    assert bill.total_s == 3700 + 210
    assert bill.range_s[1] == pytest.approx(3910 + (400**2 + 90**2) ** 0.5)


def test_the_high_end_of_a_spot_run_is_interrupted_more_often():
    _, rough = biller().bill(timed(), offer(kind="spot"), 1).range_s
    plain = biller().bill(timed(), offer(), 1).range_s
    assert rough > plain[1]
    given = biller(interruptions_per_hour=0.01).bill(timed(), offer(kind="spot"), 1).range_s
    assert given[1] < rough


def test_of_offers_on_the_same_terms_the_cheapest_is_enough():
    asked = biller()
    cheap, dear, spot = offer(2.0), offer(2.5), offer(1.0, kind="spot")
    assert asked.worth_asking([dear, cheap, spot]) == [cheap, spot]
    other = offer(2.6, provider="runpod")
    assert asked.worth_asking([dear, cheap, other]) == [cheap, other]


def choice(usd: float, seconds: float) -> SimpleNamespace:
    return SimpleNamespace(total_usd=usd, total_s=seconds)


def test_the_knee_of_a_front():
    """From (1, 100) to (10, 10) the line in shares is straight; (2, 15) lies furthest below it."""
    front = [choice(1, 100), choice(1.8, 60), choice(2, 15), choice(10, 10)]
    assert balanced(front) is front[2]
    assert balanced([]) is None
    assert balanced(front[:1]) is front[0]
    straight = [choice(1, 100), choice(10, 11)]
    assert balanced(straight) is straight[0], "the least cost x time"


def test_what_hardly_differs_is_not_paid_for():
    front = [choice(1.0, 100), choice(1.005, 60), choice(2, 15), choice(4, 14.9)]
    assert cheapest(front) is front[1], "for half a percent more it takes 40 % less time"
    assert fastest(front) is front[2], "0.7 % faster for twice the money is none"
    assert cheapest([]) is fastest([]) is None


def test_a_deadline_takes_what_fits_for_sure_first():
    """Cheaper but perhaps too large for its card: only where nothing else is over in time."""

    def made(usd: float, high_s: float, fits_surely: bool) -> SimpleNamespace:
        one = choice(usd, 100.0)
        return SimpleNamespace(**vars(one), total_range_s=(90.0, high_s), fits_surely=fits_surely)

    def found(*choices: SimpleNamespace) -> SimpleNamespace | None:
        search = Search.__new__(Search)
        search.within_s, search.in_time, search.best = 120.0, None, {}
        search.front, search.sure = Front(), Front()
        search.biller = SimpleNamespace(bill=lambda timed, *_: SimpleNamespace(range_s=timed.total_range_s))
        for number, one in enumerate(choices):
            rig, held = SimpleNamespace(hardware="1 x h100", nodes=1), SimpleNamespace(fits_surely=one.fits_surely)
            search._keep(Point(one.total_usd, one.total_s, (number,), Found(rig, None, None, one, held)))
        return None if search.in_time is None else search.in_time.of.timed

    risky, safe, late = made(1.0, 110.0, False), made(2.0, 110.0, True), made(0.5, 130.0, True)
    assert found(risky, safe, late) is found(late, safe, risky) is safe
    assert found(risky, late) is risky
    assert found(late) is None
    told = reasons({"deadline": risky}, [late], 120.0)["deadline"]
    assert "may not fit: nothing that fits for sure is over by then" in told
    assert "may not fit" not in reasons({"deadline": safe}, [late], 120.0)["deadline"]
