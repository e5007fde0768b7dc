"""The search against brute force: on small spaces both find the same picks and the same front."""

from __future__ import annotations

import random
from datetime import date

import pytest

from tunecast.job.mapping import job_from_dict
from tunecast.market.offer import Offer
from tunecast.market.selection import Selection
from tunecast.planning.choice import NO_LIMITS, Choice, Constraints, Plan
from tunecast.planning.goals import Front, Point
from tunecast.planning.plan import Question, plan_of
from tunecast.planning.space import Freedom, freed_fields

DAY = date(2026, 11, 1)
CARDS = ("rtx-4090", "l4", "a100-sxm-40gb", "h100-sxm-80gb")
PROVIDERS = ("lambda", "runpod", "aws", "nobody-knows")


def drawn_offers(seed: int) -> list[Offer]:
    draw = random.Random(seed)
    made = []
    for gpu in draw.sample(CARDS, 2):
        for gpus in draw.sample((1, 2, 4), 2):
            for provider in draw.sample(PROVIDERS, 2):
                usd = round(gpus * draw.uniform(0.3, 4.0), 2)
                kind = draw.choice(("on-demand", "spot"))
                made.append(Offer(provider, kind, gpu, gpus, usd, DAY, "drawn", max_nodes=draw.choice((None, 1, 2))))
    return made


def job(seed: int) -> dict[str, object]:
    draw = random.Random(seed)
    return {
        "model": draw.choice(("qwen3-0.6b", "llama-3.2-1b")),
        "method": draw.choice(("full", "lora")),
        "weights_dtype": "bfloat16",
        "micro_batch": draw.choice((2, 4)),
        "seq_len": draw.choice((512, 2048)),
        "kernels": [],
        "data": {"tokens": 3_000_000},
    }


def plans(seed: int, limits: Constraints) -> tuple[Plan, Plan]:
    freedom = Freedom(written=frozenset({"kernels", "method", "weights_dtype"}))
    searched, brute = (
        plan_of(
            job_from_dict(job(seed)),
            Selection(tuple(drawn_offers(seed))),
            Question(DAY, freedom, limits),
            bounds=bounds,
        )
        for bounds in (True, False)
    )
    return searched, brute


def told(choice: Choice | None) -> object:
    if choice is None:
        return None
    return choice.hardware, choice.fleet.offer, choice.changes, choice.total_usd, choice.total_s


@pytest.mark.parametrize("limits", [NO_LIMITS, Constraints(within_s=1800.0)], ids=["no limit", "30 minutes"])
@pytest.mark.parametrize("seed", range(3))
def test_brute_force_finds_no_better_pick(seed: int, limits: Constraints) -> None:
    searched, brute = plans(seed, limits)
    assert {name: told(one) for name, one in searched.picks.items()} == {
        name: told(one) for name, one in brute.picks.items()
    }
    assert [told(one) for one in searched.pareto if one.fits_surely] == [
        told(one) for one in brute.pareto if one.fits_surely
    ]
    assert not set(searched.ruled_out) & {one.hardware for one in brute.pareto if one.fits_surely}
    assert limits.within_s is not None or not brute.ruled_out
    assert searched.searched.configurations == brute.searched.configurations
    assert searched.searched.predicted < brute.searched.predicted, "bounds are of use"


def test_brute_force_finds_no_better_pick_with_zero_and_compile_allowed() -> None:
    """Of a quantised base, whose norms and embeddings stay as they are."""
    fields = {"model": "llama-3.2-1b", "method": "qlora", "weights_dtype": "bfloat16", "micro_batch": 2, "seq_len": 512}
    wanted = job_from_dict({**fields, "kernels": [], "data": {"tokens": 20_000_000}})
    freedom = Freedom(frozenset(fields) | {"kernels"}, allow=freed_fields(["zero", "compile"]))
    offers = [Offer("lambda", "on-demand", "l4", gpus, 0.8 * gpus, DAY, "test") for gpus in (1, 2)]
    searched, brute = (
        plan_of(wanted, Selection(tuple(offers)), Question(DAY, freedom), bounds=bounds) for bounds in (True, False)
    )
    assert {name: told(one) for name, one in searched.picks.items()} == {
        name: told(one) for name, one in brute.picks.items()
    }
    assert searched.searched.predicted < brute.searched.predicted
    assert brute.searched.bounded == 0
    for one in brute.picks.values():
        assert one is None or one.job.quantization.prepare_kbit is False


@pytest.mark.parametrize("seed", range(2))
def test_no_choice_of_a_front_is_dominated_and_it_is_the_same_every_time(seed: int) -> None:
    first, second = (
        plan_of(job_from_dict(job(seed)), Selection(tuple(offers)), Question(DAY))
        for offers in (drawn_offers(seed), list(reversed(drawn_offers(seed))))
    )
    assert [told(one) for one in first.pareto] == [told(one) for one in second.pareto]
    for one in first.pareto:
        for other in (*first.pareto, *first.choices):
            assert not (other.total_usd < one.total_usd and other.total_s < one.total_s)


def test_a_front_holds_what_brute_force_holds() -> None:
    draw = random.Random(3)
    for _ in range(200):
        points = [
            Point(draw.randint(1, 12), draw.randint(1, 12), (number,), number) for number in range(draw.randint(1, 25))
        ]
        front: Front[int] = Front()
        for point in points:
            front.add(point)
        best = [
            one
            for one in points
            if not any(
                other.usd <= one.usd
                and other.seconds <= one.seconds
                and (other[:2] != one[:2] or other.order < one.order)
                for other in points
                if other is not one
            )
        ]
        assert list(front) == sorted(best)
        for usd in range(14):
            for seconds in range(14):
                beaten = any(
                    p.usd <= usd and p.seconds <= seconds and (p.usd < usd or p.seconds < seconds) for p in points
                )
                assert front.dominates(usd, seconds) == beaten
