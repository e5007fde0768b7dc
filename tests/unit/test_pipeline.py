"""Pipeline schedules, on paper and for any stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunecast.prediction.time.pipeline import GPIPE, INTERLEAVED, ONE_F_ONE_B, SCHEDULES, order, pipeline_time


def written(schedule: str, rank: int, ranks: int, micro_batches: int, chunks: int = 1) -> str:
    return " ".join(
        f"{'F' if work.forward else 'B'}{work.micro_batch}" + (f".{work.chunk}" if chunks > 1 else "")
        for work in order(schedule, rank, ranks, micro_batches, chunks)
    )


def test_orders_are_those_of_the_papers():
    assert written(ONE_F_ONE_B, 0, 4, 5) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert written(ONE_F_ONE_B, 3, 4, 3) == "F0 B0 F1 B1 F2 B2"
    assert written(ONE_F_ONE_B, 0, 4, 2) == "F0 F1 B0 B1"
    assert written(GPIPE, 1, 4, 3) == "F0 F1 F2 B0 B1 B2"
    # 2 ranks, 2 chunks: two micro-batches through the first chunk, then through the second
    assert (
        written(INTERLEAVED, 1, 2, 4, 2)
        == "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"
    )


def test_two_stages_by_hand():
    """F 1 s, B 2 s, 2 micro-batches, hops of 0.5 s.

    rank 0   F0 0-1, F1 1-2, B0 from 1.5+1+2+0.5 = 5 to 7, B1 from 8 to 10
    rank 1   F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5
    """
    found = pipeline_time(ONE_F_ONE_B, 2, 2, [1, 1], [2, 2], 0.5)
    assert found.step_s == 10
    assert found.busy_s == (6, 6)
    assert found.bubble_s == 4
    assert found.in_flight == (2, 1)


@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 4), (4, 16), (8, 32)])
def test_equal_stages_idle_p_minus_1_of_m(schedule, ranks, micro_batches):
    found = pipeline_time(schedule, ranks, micro_batches, [1.0] * ranks, [2.0] * ranks)
    assert found.bubble_s == pytest.approx((ranks - 1) * 3)
    assert found.bubble_s / max(found.busy_s) == pytest.approx((ranks - 1) / micro_batches)


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 2), (4, 2), (4, 4)])
def test_interleaving_divides_the_bubble(ranks, chunks):
    """A stage's work is the same, cut in chunks: the bubble is (p-1)(f+b)/v."""
    stages = ranks * chunks
    found = pipeline_time(INTERLEAVED, ranks, 4 * ranks, [1.0 / chunks] * stages, [2.0 / chunks] * stages)
    assert found.bubble_s == pytest.approx((ranks - 1) * 3 / chunks)


def test_what_a_rank_holds():
    assert pipeline_time(ONE_F_ONE_B, 4, 8, [1] * 4, [2] * 4).in_flight == (4, 3, 2, 1)
    assert pipeline_time(GPIPE, 4, 8, [1] * 4, [2] * 4).in_flight == (8, 8, 8, 8)
    # warm-up of 2 (p - r - 1) + (v - 1) p passes, and one more
    assert pipeline_time(INTERLEAVED, 4, 8, [1] * 8, [2] * 8).in_flight == (11, 9, 7, 5)


def test_a_slow_stage_sets_the_pace():
    """The last stage has the head, 3 s more: it never idles between its first forward and its last backward."""
    found = pipeline_time(ONE_F_ONE_B, 4, 16, [1, 1, 1, 2], [2, 2, 2, 4])
    assert max(found.busy_s) == 16 * 6
    assert found.step_s == 3 + 16 * 6 + 3 * 2


def test_what_cannot_be_scheduled_is_told():
    with pytest.raises(ValueError, match="allowed: gpipe, 1f1b, interleaved"):
        pipeline_time("zero-bubble", 2, 2, [1, 1], [1, 1])
    with pytest.raises(ValueError, match="multiple of its 4 ranks"):
        pipeline_time(INTERLEAVED, 4, 6, [1] * 8, [1] * 8)
    with pytest.raises(ValueError, match="2 stages a rank"):
        pipeline_time(ONE_F_ONE_B, 2, 4, [1] * 4, [1] * 4)


SECONDS = st.floats(0.01, 10)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[str, int, int, list[float], list[float], float]:
    schedule = draw(st.sampled_from(SCHEDULES))
    ranks = draw(st.integers(1, 5))
    chunks = draw(st.integers(1, 3)) if schedule == INTERLEAVED else 1
    micro_batches = ranks * draw(st.integers(1, 4)) if chunks > 1 else draw(st.integers(1, 12))
    times = st.lists(SECONDS, min_size=ranks * chunks, max_size=ranks * chunks)
    return schedule, ranks, micro_batches, draw(times), draw(times), draw(st.floats(0, 1))


@given(pipelines())
def test_any_schedule_runs_everything_once_and_no_faster_than_it_can(pipeline):
    schedule, ranks, micro_batches, forward, backward, hop = pipeline
    found = pipeline_time(*pipeline)
    for rank in range(ranks):
        work = order(schedule, rank, ranks, micro_batches, len(forward) // ranks)
        assert len(set(work)) == len(work) == 2 * micro_batches * len(forward) // ranks
    through = sum(forward) + sum(backward) + 2 * hop * (len(forward) - 1)
    assert found.step_s >= max(max(found.busy_s), through) * (1 - 1e-9)
    assert found.step_s <= (sum(found.busy_s) + 2 * hop * micro_batches * len(forward)) * (1 + 1e-9)
    assert all(1 <= held <= micro_batches * len(forward) // ranks for held in found.in_flight)


@given(pipelines())
def test_one_rank_has_no_bubble(pipeline):
    _, _, micro_batches, forward, backward, hop = pipeline
    assert pipeline_time(ONE_F_ONE_B, 1, micro_batches, forward[:1], backward[:1], hop).bubble_s == pytest.approx(0)


@given(pipelines(), st.integers(0, 14), st.floats(0, 5))
def test_a_slower_stage_never_makes_a_step_faster(pipeline, stage, more):
    schedule, ranks, micro_batches, forward, backward, hop = pipeline
    slower = [s + more if i == stage % len(forward) else s for i, s in enumerate(forward)]
    before = pipeline_time(schedule, ranks, micro_batches, forward, backward, hop).step_s
    assert pipeline_time(schedule, ranks, micro_batches, slower, backward, hop).step_s >= before * (1 - 1e-9)
