"""Plans that learned from runs: the search finds what brute force finds, and no floor is above a corrected step."""

from __future__ import annotations

import random
from datetime import date
from math import exp, log

import pytest

from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.job.model import resolve_model
from tunecast.market.offer import Offer
from tunecast.market.selection import Selection
from tunecast.planning.bill import Biller, Terms
from tunecast.planning.choice import Choice, Plan
from tunecast.planning.estimate import Estimator
from tunecast.planning.plan import Question, plan_of
from tunecast.planning.search import Search
from tunecast.planning.space import Freedom, Setting, space_of
from tunecast.prediction.evidence import ONE, SIXTEEN_BITS, family_of
from tunecast.prediction.lessons.correction import (
    Correction,
    Learned,
    Observed,
    correction,
    learned_elsewhere,
    least_ratio,
)
from tunecast.prediction.time.ranges import StepKind

DAY = date(2026, 11, 1)
CARDS = ("rtx-4090", "l4")
STACK = f"{family_of('transformers')}, {SIXTEEN_BITS}, {ONE}"
MODEL = "qwen3-0.6b"
JOB = {
    "model": MODEL, "method": "lora", "weights_dtype": "bfloat16", "micro_batch": 4, "seq_len": 512, "kernels": [],
    "data": {"tokens": 3_000_000},
}  # fmt: skip
FREEDOM = Freedom(written=frozenset({"kernels", "method", "weights_dtype"}))
OFFERS = tuple(
    Offer("lambda", "on-demand", gpu, gpus, usd * gpus, DAY, "test")
    for gpu, usd in zip(CARDS, (0.7, 0.27), strict=True)
    for gpus in (1, 2)
)


def run(number: int, card: str, waits: str, ratio: float, stack: str = STACK, model: str = MODEL) -> Observed:
    return Observed(f"{number:032x}", "2026-01-01", card, waits, stack, model, "host", log(ratio), 0.2)


def drawn(seed: int) -> dict[str, Learned]:
    """Runs whose steps that wait for the host are corrected one way, and those that wait for the card the other."""
    draw = random.Random(seed)
    made = {}
    for card in CARDS:
        ratios = {"host": draw.choice((0.6, 1.5)), "card": draw.choice((0.6, 1.5))}
        runs = [run(n, card, waits, of * draw.uniform(0.95, 1.05)) for waits, of in ratios.items() for n in range(12)]
        made[card] = learned_elsewhere(Learned(tuple(runs)))
    return made


def plans(learned: dict[str, Learned]) -> tuple[Plan, Plan]:
    question = Question(DAY, FREEDOM, learned=learned)
    searched, brute = (
        plan_of(job_from_dict(JOB), Selection(OFFERS), question, bounds=bounds) for bounds in (True, False)
    )
    return searched, brute


def told(choice: Choice | None) -> object:
    return choice and (choice.hardware, choice.fleet.offer, choice.changes, choice.total_usd, choice.total_range_s)


@pytest.mark.parametrize("seed", range(3))
def test_brute_force_finds_no_better_pick_of_corrected_steps(seed: int) -> None:
    searched, brute = plans(drawn(seed))
    assert {name: told(one) for name, one in searched.picks.items()} == {
        name: told(one) for name, one in brute.picks.items()
    }
    assert list(map(told, searched.pareto)) == list(map(told, brute.pareto))
    assert searched.searched.predicted < brute.searched.predicted, "bounds are of use"
    assert searched.best is not None and searched.best.learned is not None
    assert searched.best.prediction is not None
    assert searched.best.prediction.time.step_s == pytest.approx(searched.best.step_s, rel=1e-9)


def test_a_card_that_was_learned_to_be_faster_is_picked_and_without_runs_nothing_changes() -> None:
    without, _ = plans({})
    best = without.best
    assert best is not None and best.learned is None
    other = next(card for card in CARDS if card != best.fleet.gpu.name)
    runs = tuple(run(n, other, waits, 0.3) for waits in ("host", "card") for n in range(20))
    found, brute = plans({other: learned_elsewhere(Learned(runs))})
    assert found.best is not None and found.best.fleet.gpu.name == other
    assert told(found.best) == told(brute.best)
    assert found.best.learned is not None and found.best.learned.runs == 20
    nothing, _ = plans({card: learned_elsewhere(Learned()) for card in CARDS})
    assert list(map(told, nothing.pareto)) == list(map(told, without.pareto))


def test_floors_of_a_search_are_below_corrected_runs() -> None:
    learned = drawn(0) | {"l4": learned_elsewhere(Learned(tuple(run(n, "l4", "card", 0.5) for n in range(20))))}
    job, model = job_from_dict(JOB), resolve_model(MODEL)
    space = space_of(job, FREEDOM, list(OFFERS), model.raw)
    biller, estimator = Biller(job, Terms()), Estimator(space, model, learned)
    search, checked, corrected = Search(space, estimator, biller), 0, 0
    for rig, offers in search.offers.items():
        for block in space.blocks(rig):
            setting = Setting(block.technique, block.spread, block.splits[0])
            timed = estimator.time_run(rig, setting)
            corrected += timed.learned is not None and timed.learned.log_ratio < 0
            for (usd, seconds), offer in zip(search._floors(rig, setting), offers, strict=True):
                likely = biller.likely(timed, offer, rig.nodes)
                assert usd <= likely.total_usd and seconds <= likely.wall_s
                checked += 1
    assert checked >= 8 and corrected >= 2


def drawn_run(number: int, draw: random.Random) -> Observed:
    stack = f"{draw.choice('ab')}, {SIXTEEN_BITS}, {ONE}"
    ratio = exp(draw.gauss(0, 0.3))
    made = run(number, "l4", draw.choice(("host", "card")), ratio, stack, draw.choice("xyz"))
    return made._replace(host=draw.choice("pq"))


def test_no_correction_elsewhere_is_below_the_least_ratio() -> None:
    """Of stacks, models and hosts that cross, whatever the spread."""
    draw = random.Random(7)
    below = 0
    for _ in range(300):
        runs = tuple(drawn_run(number, draw) for number in range(draw.randint(1, 12)))
        learned = learned_elsewhere(Learned(runs))
        for waits in ("host", "card"):
            kind = StepKind("l4", "a", SIXTEEN_BITS, ONE, waits, "short")
            found: Correction = correction(learned, kind, draw.choice("xyz"), draw.uniform(0.01, 0.6))
            assert found.ratio >= least_ratio(learned, "l4")
            below += found.ratio < 1
    assert below > 100


def test_elsewhere_the_host_is_not_known() -> None:
    """Twelve runs on one host are 30 % longer than predicted: a part of that is the host's."""
    runs = tuple(run(n, "l4", "card", 1.3) for n in range(12))
    kind = StepKind("l4", family_of("transformers"), SIXTEEN_BITS, ONE, "card", "long")
    here, there = (correction(each, kind, MODEL, 0.2) for each in (Learned(runs), learned_elsewhere(Learned(runs))))
    assert 1 < there.ratio < here.ratio < 1.3
    assert here.narrowing < there.narrowing < 1 and there.weight < here.weight
    kept = learned_elsewhere(Learned(runs, starts={"l4": (1.0, 1.0, 1.0)}))
    assert not kept.starts and not kept.contexts, "those are of the host and its driver"


def test_checkpointing_is_left_out_by_what_fits_not_by_a_corrected_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were steps with it corrected to less than those without, neither the search nor brute force may pick it where the
    same fits without: it only adds operations."""
    from tunecast.prediction.lessons import correction as module

    def shorter(learned: Learned, step: object, job: Job, gpu_name: str) -> Correction:
        return Correction(log(0.6) if job.gradient_checkpointing else 0.0, 0.5, 0.5, len(learned.runs))

    monkeypatch.setattr(module, "correction_of", shorter)
    learned = {card: learned_elsewhere(Learned(tuple(run(n, card, "card", 0.6) for n in range(3)))) for card in CARDS}
    searched, brute = plans(learned)
    assert list(map(told, searched.pareto)) == list(map(told, brute.pareto))
    assert brute.best is not None and brute.best.job is not None and not brute.best.job.gradient_checkpointing
