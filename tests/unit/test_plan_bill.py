"""Bills and picks of a plan, on numbers one can redo by hand."""

from __future__ import annotations

from datetime import date
from types import SimpleNamespace

import pytest

from tunecast.hardware.catalog import known_gpu
from tunecast.job.mapping import job_from_dict
from tunecast.market.cost import expected_interruptions
from tunecast.market.offer import Offer
from tunecast.planning.bill import Biller, StartTime, Terms
from tunecast.planning.choice import Fleet
from tunecast.planning.estimate import Timed
from tunecast.planning.goals import Aim, Goal, Point
from tunecast.planning.objective import balanced, pick, reasons, space_out
from tunecast.prediction.time.whole import WholeTime
from tunecast.records import replace

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
    assert start == StartTime(120, 210, 300)
    bill = asked.bill(timed(), offer(provider="nobody-knows"), nodes=1)
    assert bill.total_s == 3700 + 210
    assert bill.range_s[1] == pytest.approx(3910 + (400**2 + 90**2) ** 0.5)


def test_how_often_a_spot_machine_is_interrupted_is_told_apart_from_how_fast_it_is():
    spot, plain = biller().bill(timed(), offer(kind="spot"), 1), biller().bill(timed(), offer(), 1)
    assert spot.rough is not None and plain.rough is None
    assert spot.rough.interruptions > 10 * spot.cost.interruptions
    assert spot.usd_range[1] < spot.rough.total_usd or spot.range_s[1] < spot.rough.wall_s
    wide, usual = spot.range_s[1] - spot.range_s[0], plain.range_s[1] - plain.range_s[0]
    assert wide == pytest.approx(usual, rel=0.05), "the range is of speed"
    assert biller(interruptions_per_hour=0.01).bill(timed(), offer(kind="spot"), 1).rough is None


def test_a_reservation_costs_its_whole_term():
    reserved = offer(2.0, kind="reserved", term_hours=8760.0)
    bill = biller().bill(timed(), reserved, nodes=2)
    assert bill.cost.total_usd == pytest.approx(2.0 * 8760 * 2)
    assert biller().fixed_usd(reserved, 2, 0) == pytest.approx(2.0 * 8760 * 2)
    assert biller().least_usd_per_s(reserved, 2) == 0
    (line,) = [line for line in bill.cost.lines if line.usd]
    assert (line.name, line.told) == ("reservation", "8,760 h, used or not")


def test_cards_that_serve_vllm_are_paid_too():
    """Two machines of one card train, one more card generates: three are paid for."""
    rl = {"engine": "vllm", "vllm": {"place": "server", "cards": 1}}
    serving = Biller(job_from_dict({"model": "qwen3-0.6b", "task": "grpo", "stack": "trl", "rl": rl}), Terms())
    owned = offer(kind="owned")
    bill = serving.bill(timed(), owned, nodes=2)
    assert bill.cost.total_usd == pytest.approx(3700 * 3 * 3.6 / 3600)
    assert serving.least_usd_per_s(owned, 2) == pytest.approx(3 * 3.6 / 3600)
    assert any("1 more card is rented for vLLM" in told for told in bill.cost.assumptions)
    reserved = offer(2.0, kind="reserved", term_hours=8760.0)
    assert serving.fixed_usd(reserved, 2, 0) == pytest.approx(2.0 * 8760 * 3)
    fleet = Fleet(known_gpu("h100-sxm-80gb"), 2, 1, replace(offer(), gpus=2, usd_per_hour=6.0), serving.serving)
    assert fleet.hardware == "2 x h100-sxm-80gb + 1 x h100-sxm-80gb for vLLM"
    assert (fleet.cards, fleet.usd_per_hour) == (2, 9.0)


def test_egress_nobody_knows_the_price_of_is_not_free():
    known, unknown = offer(provider="runpod"), offer(provider="nobody-knows")
    heavy = timed()._replace(weights_bytes=100 * 10**9)
    assert dict(line[:2] for line in biller().likely(heavy, known, 1).lines)["egress"] == 0
    cost = biller().likely(heavy, unknown, 1)
    assert dict(line[:2] for line in cost.lines)["egress"] == pytest.approx(100 * 0.12)
    assert any("nobody-knows takes for egress is not known" in told for told in cost.assumptions)


def test_runs_one_after_another_share_the_machine_and_the_data():
    one = timed()
    phases = {**one.whole.phases_s, "preparation": 50.0, "download": 20.0}
    one = one._replace(whole=replace(one.whole, phases_s=phases, total_s=one.whole.total_s + 70))
    made = biller(runs=4)
    owned = offer(kind="owned")
    assert made.phases(one, owned, 1) == {
        "provisioning": 0.0, "load": 400.0, "training": 4 * 3600.0, "preparation": 50.0, "download": 20.0
    }  # fmt: skip
    assert made.bill(one, owned, 1).total_s == pytest.approx(4 * 3700 + 70)


def test_a_spot_machine_saves_as_often_as_pays():
    """Young: sqrt(2 x 10 s x 129 h) between checkpoints of 10 s; of an on-demand one as the job says."""
    phases = {"provisioning": 0.0, "training": 36_000.0, "checkpoints": 70.0}
    whole = WholeTime(36_070, 36_000, 36_100, phases, 3600, 10.0, 1e6, 1e6, 0, 7)
    run = Timed(10.0, whole, 0, 0)
    every_s = (2 * 10 * 3600 / 0.00774) ** 0.5
    assert biller().save_steps(run, offer(kind="spot"), 1) == pytest.approx(every_s / 10, rel=0.01)
    assert biller().save_steps(run, offer(), 1) is None
    assert biller(chooses_saves=False).save_steps(run, offer(kind="spot"), 1) is None
    steps = biller().save_steps(run, offer(kind="spot"), 1)
    assert biller().phases(run, offer(kind="spot"), 1)["checkpoints"] == 3600 // steps * 10


@pytest.mark.parametrize(("nodes", "steps"), [(1, 120), (4, 60), (9, 40)])
def test_of_several_spot_machines_any_ends_the_job_so_that_it_saves_more_often(nodes: int, steps: int):
    """A machine every 20 h, a save of 10 s: sqrt(2 x 10 x 72,000 / n) = 1,200 s, 600 s of four, 400 s of nine; a step
    takes 10 s. No other interval is cheaper."""
    phases = {"provisioning": 0.0, "training": 36_000.0, "checkpoints": 70.0}
    run = Timed(10.0, WholeTime(36_070, 36_000, 36_100, phases, 3600, 10.0, 1e6, 1e6, 0, 7), 0, 0)
    spot = offer(kind="spot")
    made = biller(interruptions_per_hour=1 / 20)
    assert made.save_steps(run, spot, nodes) == steps

    def wall_s(every: int) -> float:
        took = {**made.phases(run, spot, nodes), "checkpoints": 36_000 / (every * 10) * 10}
        rate = nodes / 20
        return sum(took.values()) + expected_interruptions(took, rate, every * 10.0).wall_s

    assert min(range(10, 400, 5), key=wall_s) == pytest.approx(steps, rel=0.1)


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
    assert space_out(front) == [front[1], front[2]], "half a percent cheaper, or faster, is nothing that is known"
    assert space_out([]) == []
    assert space_out(front[:1]) == front[:1]
    picks = pick(space_out(front), None)
    assert picks["cheapest"] is front[1] and picks["fastest"] is front[2] and picks["deadline"] is None


def test_a_front_is_spaced_without_losing_a_bargain():
    front = [choice(10, 100), choice(12, 98), choice(13, 70), choice(13.4, 40), choice(20, 30), choice(40, 29)]
    assert space_out(front) == [front[0], front[3], front[4], front[5]]
    for one in front:
        near = [each for each in space_out(front) if each.total_usd <= one.total_usd * 1.05]
        assert any(each.total_s <= one.total_s * 1.06 for each in near), "something shown is nearly as good"


def test_a_deadline_is_kept_at_the_high_end_and_by_what_fits_for_sure_first():
    def best(*points: tuple[float, float, bool]) -> int | None:
        goal: Goal[int] = Goal(Aim("front", lambda rig, offer: True, 120.0))
        for number, (usd, high_s, surely) in enumerate(points):
            goal.add(Point(usd, 100.0, (number,), number), lambda high_s=high_s: high_s, surely=surely)
        return None if goal.best is None else goal.best.of

    risky, safe, late = (1.0, 110.0, False), (2.0, 110.0, True), (0.5, 130.0, True)
    assert best(risky, safe, late) == 1 and best(late, safe, risky) == 1
    assert best(risky, late) == 0
    assert best(late) is None
    told = reasons({"deadline": _told(False)}, [], 120.0)["deadline"]
    assert "may not fit: nothing that fits for sure finishes by then" in told
    assert "may not fit" not in reasons({"deadline": _told(True)}, [], 120.0)["deadline"]


def _told(fits_surely: bool) -> SimpleNamespace:
    return SimpleNamespace(total_usd=1.0, total_s=100.0, total_range_s=(90.0, 110.0), fits_surely=fits_surely)
