"""What holds of learning whatever the runs are."""

from __future__ import annotations

from math import isfinite, log
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.learn.learning import learn
from tunecast.prediction.lessons.correction import NONE, Learned, correction
from tunecast.prediction.time.ranges import StepKind

KIND = StepKind("rtx-4090", "accelerate", "16 bits", "one", "card", "short")
STACKS = st.sampled_from(["transformers", "litgpt"])
RATIOS = st.floats(0.05, 20.0)


@st.composite
def records(draw: Any, most: int = 12) -> list[dict[str, Any]]:
    count = draw(st.integers(0, most))
    return [
        {
            "id": f"{order:032x}", "state": draw(st.sampled_from(["done", "done", "stopped", "oom"])),
            "began": f"2026-01-{draw(st.integers(1, 28)):02}T00:00:00Z",
            "job": {"model": draw(st.sampled_from(["a", "b"])), "stack": draw(STACKS)},
            "hardware": {"gpu": "rtx-4090", "gpus": 1, "nodes": 1, "host": draw(st.sampled_from(["ab" * 6, None]))},
            "time": {"step_s": draw(RATIOS)}, "memory": None,
            "predicted": {"step_s": 1.0, "low_s": 0.8, "high_s": draw(st.floats(1.01, 2.0))},
        }
        for order in range(count)
    ]  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(records(), st.randoms(use_true_random=False), st.sampled_from(["a", "b", "c"]))
def test_the_order_of_records_does_not_matter(found: list[dict[str, Any]], chance: Any, model: str) -> None:
    mixed = list(found)
    chance.shuffle(mixed)
    assert learn(found) == learn(mixed)
    assert correction(learn(found), KIND, model, 0.1) == correction(learn(mixed), KIND, model, 0.1)


@settings(deadline=None, max_examples=60)
@given(records(), st.sampled_from(["a", "b", "c"]), st.floats(0.01, 0.5))
def test_figures_are_finite_and_ranges_have_a_width(found: list[dict[str, Any]], model: str, spread: float) -> None:
    made = correction(learn(found), KIND, model, spread)
    assert isfinite(made.log_ratio) and 0.0 <= made.weight <= 1.0
    assert made.narrowing > 0.0 and isfinite(made.narrowing)


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 1e3))
def test_one_run_moves_a_prediction_by_a_bounded_amount(
    odd: float,
) -> None:
    """Whatever it says: of twelve runs that agree, by less than a run's own expected deviation."""
    base = [
        {
            "id": f"{100 + order:032x}", "state": "done", "began": f"2026-02-{order + 1:02}T00:00:00Z",
            "job": {"model": "a", "stack": "transformers"}, "hardware": {"gpu": "rtx-4090", "host": None},
            "time": {"step_s": 1.05 + 0.002 * (order % 5)}, "predicted": {"step_s": 1.0, "low_s": 0.9, "high_s": 1.1},
        }
        for order in range(12)
    ]  # fmt: skip
    one = {**base[0], "id": f"{200:032x}", "began": "2026-02-20T00:00:00Z", "time": {"step_s": odd}}
    before, after = (correction(learn(each), KIND, "a", 0.08) for each in (base, [*base, one]))
    assert abs(after.log_ratio - before.log_ratio) < 0.04


def test_no_records_teach_nothing() -> None:
    assert learn([]) == Learned()
    assert correction(learn([]), KIND, "a", 0.1) is NONE


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 19), st.floats(0.7, 1.4))
def test_more_runs_that_agree_go_further_and_narrow_more(count: int, ratio: float) -> None:
    def made(runs: int) -> Any:
        learned = learn([
            {
                "id": f"{order:032x}", "state": "done", "began": f"2026-01-{order + 1:02}T00:00:00Z",
                "job": {"model": "a", "stack": "transformers"}, "hardware": {"gpu": "rtx-4090"},
                "time": {"step_s": ratio}, "predicted": {"step_s": 1.0, "low_s": 0.8, "high_s": 1.25},
            }
            for order in range(runs)
        ])  # fmt: skip
        return correction(learned, KIND, "a", 0.15)

    few, more = made(count), made(count + 1)
    assert abs(more.log_ratio) >= abs(few.log_ratio) - 1e-9
    assert abs(more.log_ratio) <= abs(log(ratio)) + 1e-9
    assert more.narrowing <= few.narrowing + 1e-9
