"""What a job costs on its own machines: the plan's own bill, of an offer a plan would pick unasked."""

from __future__ import annotations

from datetime import date

import pytest

from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.market import store
from tunecast.market.filters import Filters
from tunecast.market.selection import Rules, select
from tunecast.planning import price
from tunecast.planning.plan import Question, plan_of
from tunecast.planning.price import rent_of
from tunecast.planning.space import KEEPABLE, Freedom
from tunecast.prediction import engines
from tunecast.prediction.prediction import Prediction
from tunecast.records import replace
from tunecast.report.plan.price import cost_words, rent_words

DAY = date(2026, 11, 15)


@pytest.fixture(autouse=True)
def no_offers_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(store, "folder", lambda environ=None: tmp_path)


def job(**fields: object) -> Job:
    known = {"model": "llama-3.2-1b", "method": "lora", "micro_batch": 2, "seq_len": 1024}
    return job_from_dict({**known, "hardware": {"gpu": "h100"}, **fields})


def predicted(job: Job) -> Prediction:
    return engines.predict(job, timed=True)


def test_the_same_as_a_plan_that_may_change_nothing():
    asked = job(data={"samples": 20_000, "epochs": 1}, micro_batch=8)
    rent = rent_of(predicted(asked), DAY)
    offers = select(store.offers(), Filters(gpu="h100", gpus=1), Rules(), DAY)
    best = plan_of(asked, offers, Question(DAY, Freedom(keep=frozenset(KEEPABLE), nodes_up_to=1))).best
    assert rent is not None and best is not None and rent.bill is not None
    assert set(best.changes) <= {"hardware.gpu"}, "its whole name"
    assert rent.fleet.offer == best.fleet.offer
    assert rent.total_usd == pytest.approx(best.total_usd, rel=1e-6)
    assert rent.usd_range == pytest.approx(best.usd_range, rel=1e-6)
    assert rent.bill.total_s == pytest.approx(best.total_s, rel=1e-6)


def test_of_an_unknown_amount_of_data_an_hour_and_a_million_tokens():
    done = predicted(job())
    rent = rent_of(done, DAY)
    assert rent is not None and done.time is not None
    assert rent.bill is None and rent.total_usd is None and rent.usd_range is None
    an_hour = done.time.tokens_per_s * 3600 / 1e6
    assert rent.usd_per_million_tokens == pytest.approx(rent.usd_per_hour / an_hour)
    assert rent.to_dict()["offer"]["dated"] == rent.offer.dated.isoformat()


def test_of_exactly_these_machines():
    several = job(hardware={"gpu": "h100", "gpus": 8}, parallel={"data": "fsdp"})
    rent = rent_of(predicted(several), DAY)
    assert rent is not None and (rent.offer.gpu, rent.offer.gpus) == ("h100-sxm-80gb", 8)
    assert rent_of(predicted(job(hardware={"gpu": "h100", "gpus": 13})), DAY) is None
    joined = rent_of(predicted(job(hardware={"gpu": "h100", "gpus": 8, "nodes": 2}, parallel={"data": "fsdp"})), DAY)
    assert joined is not None and joined.nodes == 2
    assert joined.usd_per_hour == 2 * joined.offer.usd_per_hour > 2 * rent.offer.usd_per_hour, "not all can be joined"
    other = job(hardware={"gpu": "h100", "gpus": 8, "interconnect": "pcie5-x16"}, parallel={"data": "fsdp"})
    assert rent_of(predicted(other), DAY) is None, "nobody rents out such a machine"


def test_a_host_too_small_for_the_job_is_not_rented(monkeypatch: pytest.MonkeyPatch):
    done = predicted(job())
    rent = rent_of(done, DAY)
    assert rent is not None and rent.offer.ram_bytes is not None
    monkeypatch.setattr(price, "machine_ram_bytes", lambda job, model: rent.offer.ram_bytes + 1)
    larger = rent_of(done, DAY)
    assert larger is not None and larger.usd_per_hour > rent.usd_per_hour
    assert larger.offer.ram_bytes is None or larger.offer.ram_bytes > rent.offer.ram_bytes


def test_in_words():
    whole = rent_of(predicted(job(data={"samples": 20_000, "epochs": 1})), DAY)
    assert whole is not None and whole.bill is not None
    where = f"1 x h100-sxm-80gb at {whole.offer.provider}, on demand, ${whole.usd_per_hour:.2f} per hour"
    assert rent_words(whole).endswith(f" for the whole run on {where} (price of {whole.offer.dated})")
    assert rent_words(whole).startswith(f"${whole.total_usd:.2f} (")
    unknown = rent_of(predicted(job()), DAY)
    assert unknown is not None
    assert rent_words(unknown).startswith(f"${unknown.usd_per_million_tokens:.2g} per million tokens on 1 x h100")
    flat = replace(whole, bill=whole.bill._replace(usd_range=(16.001, 16.004)))
    assert "(" not in cost_words(flat)
