"""Ranges of time: of the most alike steps that were timed, wider where less is known."""

from __future__ import annotations

import pytest

from tunecast.job import job_from_dict
from tunecast.prediction.evidence import LOW_PRECISION, ONE, SEVERAL, SIXTEEN_BITS
from tunecast.prediction.time.ranges import (
    BANDS,
    CARD,
    HOST,
    LONG,
    SHORT,
    SHORT_S,
    UNSEEN,
    StepKind,
    TimeBand,
    band_of,
    has_own_range,
    kind_of,
    ranged,
)
from tunecast.prediction.time.runtime import StepTime

H200, A100, H100 = "h200-sxm-141gb", "a100-sxm-80gb", "h100-sxm-80gb"
NOWHERE = TimeBand(*BANDS[UNSEEN])


def step(step_s: float, launch_s: float = 0.0) -> StepTime:
    return StepTime(
        step_s, step_s, step_s, {"launch": launch_s}, "compute", gpu_busy_s=step_s, cpu_s=0.0, flops=0, moved_bytes=0,
        communication_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("waits", [CARD, HOST])
@pytest.mark.parametrize("cards", [ONE, SEVERAL])
def test_what_nobody_timed_is_never_surer_than_what_was(waits: str, cards: str) -> None:
    for card in (H200, A100, "l40s"):
        kind = StepKind(card, "accelerate", SIXTEEN_BITS, cards, waits, LONG)
        timed, untimed = band_of(kind), band_of(kind, timed=False)
        assert untimed.below >= max(timed.below, NOWHERE.below) and untimed.above >= max(timed.above, NOWHERE.above)


def test_a_cards_own_steps_decide_where_there_are_enough() -> None:
    own = StepKind(A100, "accelerate", SIXTEEN_BITS, ONE, CARD, LONG)
    assert band_of(own) == TimeBand(*BANDS[own.alike()[0]])
    assert has_own_range(A100) and not has_own_range("l40s")
    assert band_of(own._replace(card="l40s")) == NOWHERE, "one card: an A100 and an H200 tell nothing of a third"


def test_the_most_alike_steps_that_were_timed_are_taken() -> None:
    kind = StepKind("l40s", "megatron", LOW_PRECISION, SEVERAL, CARD, LONG)
    assert band_of(kind) == TimeBand(*BANDS["several, megatron, 8 or 4 bits, long"])
    assert band_of(kind._replace(family="nobody's")) == TimeBand(*BANDS["several, 8 or 4 bits, long"])
    assert band_of(kind._replace(waits=HOST)) == NOWHERE, "on several cards no step that waits for its host was timed"


def test_short_steps_of_several_cards_are_less_sure() -> None:
    long = StepKind(H100, "megatron", LOW_PRECISION, SEVERAL, CARD, LONG)
    assert band_of(long._replace(length=SHORT)).above > band_of(long).above


def test_what_a_step_is_alike_to() -> None:
    kind = kind_of(step(2 * SHORT_S), H100, "nemo", several=True, low_precision=True)
    assert kind == StepKind(H100, "megatron", LOW_PRECISION, SEVERAL, CARD, LONG)
    assert kind_of(step(0.5, launch_s=0.2), H200, "trl", several=False) == StepKind(
        H200, "accelerate", SIXTEEN_BITS, ONE, HOST, SHORT
    )


@pytest.mark.parametrize(
    ("gpu", "fields", "timed"),
    [
        (H200, {}, True),
        (H200, {"stack": "unsloth"}, False),
        (H200, {"matmul_dtype": "float8"}, False),
        ("b200-sxm-180gb", {}, False),
        ("l40s", {}, False),
    ],
)
def test_the_range_of_a_jobs_step(gpu: str, fields: dict[str, str], timed: bool) -> None:
    job = job_from_dict({"model": "llama-3.1-8b", "method": "lora", "seq_len": 512, "hardware": {"gpu": gpu}, **fields})
    told = ranged({512: step(2.0)}, job, gpu, several=False)[512]
    low_precision = job.matmul_dtype is not None
    band = band_of(kind_of(told, gpu, job.stack, several=False, low_precision=low_precision), timed)
    assert (told.low_s, told.high_s) == (2.0 * (1 - band.below), 2.0 * (1 + band.above))
    assert timed or band.above >= NOWHERE.above
