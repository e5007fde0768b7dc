"""What runs teach: the posterior redone on paper, what is refused, what a step becomes."""

from __future__ import annotations

from math import exp, isclose, log, sqrt
from typing import Any

import pytest

from tunecast.learn.learning import FAR, WINDOW, learn
from tunecast.prediction.lessons.correction import (
    HALF,
    NONE,
    Correction,
    Observed,
    Prior,
    corrected,
    learned_range,
    posterior,
    spread_of,
    within_variance,
)
from tunecast.prediction.lessons.table import SHARES
from tunecast.prediction.time.runtime import StepTime

STACK = "accelerate, 16 bits, one"
NORMAL = Prior(0.5, 0.0, 0.0, 0.0, 0.5, 1e9)
"""Half of the variance is the card's, half the run's own; so much freedom that runs do not change the latter, and are
all weighed the same."""


def run(log_ratio: float, order: int = 0, **others: Any) -> Observed:
    made = Observed(
        f"{order:032x}", f"2026-01-{order + 1:02}T00:00:00Z", "rtx-4090", "card", STACK, "m", "h", log_ratio, 0.1
    )
    return made._replace(**others)


def record(order: int, ratio: float, **others: Any) -> dict[str, Any]:
    return {
        "id": f"{order:032x}", "state": "done", "began": f"2026-01-{order // 24 + 1:02}T{order % 24:02}:00:00Z",
        "job": {"model": "llama-3.1-8b", "stack": "transformers"},
        "hardware": {"gpu": "rtx-4090", "gpus": 1, "nodes": 1, "host": "ab" * 6},
        "memory": {"reserved_bytes": 10**10, "device_bytes": 10**10 + 5 * 10**8}, "time": {"step_s": ratio},
        "predicted": {"step_s": 1.0, "low_s": 0.9, "high_s": 1.1}, **others,
    }  # fmt: skip


def test_one_run_counts_by_half_where_half_of_the_variance_is_the_cards() -> None:
    # prior N(0, 0.005), own deviation 0.005: mean 0.1 / 2, variance 0.0025, predictive 0.0075 of 0.01
    found = posterior((run(0.1),), STACK, "m", 0.1, NORMAL)
    assert isclose(found.log_ratio, 0.05, rel_tol=1e-4)
    assert isclose(found.weight, 0.5, rel_tol=1e-4)
    assert isclose(found.narrowing, sqrt(0.75), rel_tol=1e-4)


def test_four_runs_count_by_four_fifths() -> None:
    # n t² / (n t² + s²) = 4 / 5
    found = posterior(tuple(run(0.1, order) for order in range(4)), STACK, "m", 0.1, NORMAL)
    assert isclose(found.log_ratio, 0.08, rel_tol=1e-4)
    assert isclose(found.narrowing, sqrt((0.005 + 0.001) / 0.01), rel_tol=1e-4)


def test_another_stack_takes_the_cards_part_alone() -> None:
    # card and stack 0.25 each of 0.01, own 0.5: the run says 0.1 of the sum of three; the card's share of it is a
    # quarter
    prior = Prior(0.25, 0.25, 0.0, 0.0, 0.5, 1e9)
    found = posterior((run(0.1),), "megatron, 16 bits, several", "m", 0.1, prior)
    assert isclose(found.log_ratio, 0.025, rel_tol=1e-4)


def test_the_host_counts_where_it_is_the_only_one() -> None:
    prior = Prior(0.0, 0.0, 0.0, 0.5, 0.5, 1e9)
    one = posterior((run(0.1),), STACK, "m", 0.1, prior)
    two = posterior((run(0.1), run(0.1, 1, host="other")), STACK, "m", 0.1, prior)
    assert one.log_ratio > 0.04
    assert abs(two.log_ratio) < 1e-6  # on which of them the job will run nobody said


def test_own_deviation_starts_as_expected_and_becomes_what_runs_show() -> None:
    runs = [run(value, order) for order, value in enumerate((0.0, 0.2))]
    # two runs about their mean of 0.1: 0.02 in one degree of freedom; the prior's two degrees at 0.005
    assert isclose(within_variance(runs, 0.005, 2.0), (2 * 0.005 + 0.02) / 3)
    assert within_variance(runs[:1], 0.005, 2.0) == 0.005


def test_shares_sum_to_one() -> None:
    for prior in map(Prior._make, SHARES.values()):
        assert prior.between + prior.within == pytest.approx(1.0, abs=0.002)
        assert all(share >= 0 for share in prior)


def test_spread_is_that_of_an_eighty_percent_range() -> None:
    assert isclose(spread_of(exp(-HALF * 0.1), 1.0, exp(HALF * 0.1)), 0.1)
    assert spread_of(1.0, 1.0, 1.0) == 0.0
    assert spread_of(0.0, 1.0, 2.0) == 0.0


STEP = StepTime(1.0, 0.9, 1.3, {"compute": 0.75, "launch": 0.25}, "compute", 0.75, 0.5, 10, 10, 0.0)


def test_a_step_is_longer_in_all_its_parts() -> None:
    found = corrected(STEP, Correction(log(1.2), weight=1.0, narrowing=0.5, runs=9))
    assert isclose(found.step_s, 1.2)
    assert isclose(sum(found.breakdown_s.values()), 1.2)
    half = (log(1.3) - log(0.9)) / 2 / 2
    assert isclose(found.low_s, 1.2 * exp(-half)) and isclose(found.high_s, 1.2 * exp(half))


def test_without_runs_a_step_is_the_shipped_one_to_the_bit() -> None:
    assert corrected(STEP, NONE) is STEP


def test_a_range_never_leaves_its_step_out() -> None:
    low, high = learned_range(0.0, 0.3, Correction(0.1, weight=0.0, narrowing=0.1, runs=1))
    assert low == 0.0 < high


def test_an_odd_run_is_refused_by_its_id() -> None:
    found = learn([*(record(order, 1.1) for order in range(8)), record(8, 2.0)])
    assert [each.id for each in found.left_out] == [f"{8:032x}"]
    assert "+82 %" in found.left_out[0].reason
    assert len(found.runs) == 8


def test_a_first_run_far_from_anything_measured_is_refused_until_three_agree() -> None:
    assert learn([record(0, 2.0)]).runs == ()
    assert learn([record(0, 2.0), record(1, 2.02)]).runs == ()
    assert len(learn([record(0, 2.0), record(1, 2.02), record(2, 1.98)]).runs) == 3


def test_runs_from_before_a_change_no_longer_count() -> None:
    before = [record(order, 1.0 + 0.001 * (order % 3)) for order in range(12)]
    after = [record(12 + order, 1.3 + 0.001 * (order % 3)) for order in range(5)]
    found = learn([*before, *after])
    assert {run.id for run in found.runs} == {f"{12 + order:032x}" for order in range(5)}
    assert len(found.left_out) == 12 and "2026-01-01" in found.left_out[0].reason


def test_the_newest_of_a_cell_count() -> None:
    found = learn([record(order, 1.0) for order in range(WINDOW + 5)])
    assert len(found.runs) == WINDOW and min(run.id for run in found.runs) == f"{5:032x}"


@pytest.mark.parametrize(
    "lacking",
    [
        {"state": "oom"}, {"predicted": None}, {"time": None}, {"hardware": {}}, {"time": {"step_s": 0.0}},
        {"time": {"step_s": 1e6}},
    ],
)  # fmt: skip
def test_a_run_that_says_nothing_of_time_is_left_out(lacking: dict[str, Any]) -> None:
    assert learn([record(0, 1.1) | lacking]).runs == ()


def test_what_was_learned_before_is_taken_out_of_the_prediction() -> None:
    said = {"step_s": 1.1, "low_s": 1.0, "high_s": 1.2, "learned": 1.1}
    (found,) = learn([record(0, 1.1, predicted=said)]).runs
    assert isclose(found.log_ratio, log(1.1))


def test_context_is_the_middle_of_at_least_three() -> None:
    records = [
        record(order, 1.0, memory={"reserved_bytes": 10**10, "device_bytes": 10**10 + held})
        for order, held in enumerate((4 * 10**8, 5 * 10**8, 7 * 10**8, 9 * 10**9))  # the last shares its card
    ]
    context = learn(records).contexts["rtx-4090"]
    assert context == (5 * 10**8, 4 * 10**8, 7 * 10**8, 3)
    assert learn(records[:2]).contexts == {}


def test_words() -> None:
    assert Correction(log(0.96), runs=12).words == "12 of your runs on this card: -4.0 %"
    assert Correction(0.0, runs=2).words == "2 of your runs on this card: no change"


def test_far_is_rare() -> None:
    """One of 16,000 of a normal distribution lies beyond, as `FAR` says."""
    from statistics import NormalDist

    assert 1 / (2 * NormalDist().cdf(-FAR)) == pytest.approx(15_787, rel=0.01)


def test_a_run_on_another_card_than_it_was_predicted_for_teaches_nothing() -> None:
    def learned_of(planned: dict[str, Any], **job: Any) -> int:
        return len(learn([record(0, 1.05, job={"model": "llama-3.1-8b", "hardware": planned, **job})]).runs)

    assert learned_of({"gpu": "rtx-4090", "gpus": 1}) == learned_of({}) == 1
    assert learned_of({"gpu": "h100-sxm-80gb", "gpus": 1}) == learned_of({"gpu": "rtx-4090", "gpus": 2}) == 0
    assert learned_of({"gpu": "rtx-4090", "gpus": 2}, parallel={"layers": 2}) == 1, "one process has both"
