"""Few lengths stand for many: the error of what lies between them, with real tapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunecast.hardware.catalog import gpu
from tunecast.job import job_from_dict
from tunecast.job.model import resolve_model
from tunecast.prediction.modelled import card_of
from tunecast.prediction.price.host import host_of
from tunecast.prediction.time.by_length import ByLength, priced_lengths
from tunecast.prediction.time.runtime import step_time
from tunecast.tape.timed import timed_steps

CARD = "h200-sxm-141gb"


def step_seconds(fields: dict[str, object], lengths: tuple[int, ...]) -> dict[int, float]:
    job = replace(job_from_dict({**fields, "hardware": {"gpu": CARD}}), lengths=(lengths[0], *lengths))
    steps = timed_steps(job, resolve_model(job.model).raw, card_of(gpu(CARD)))
    return {length: step_time(step, gpu(CARD), host_of(job)).step_s for length, step in steps.items()}


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "llama-3.1-8b", "method": "lora", "weights_dtype": "bfloat16", "micro_batch": 4},
        {"model": "llama-3.2-1b", "weights_dtype": "bfloat16", "autocast": None, "micro_batch": 2},
    ],
    ids=["lora-8b", "full-1b"],
)
def test_six_lengths_stand_for_all(fields):
    every = tuple(range(64, 2049, 128))
    exact = step_seconds({"seq_len": 2048, **fields}, every)
    few = priced_lengths({float(length): 1 / len(every) for length in every})
    at = ByLength({length: seconds for length, seconds in step_seconds({"seq_len": 2048, **fields}, few).items()})
    assert sum(map(at, every)) == pytest.approx(sum(exact.values()), rel=0.015)
    # a single length is off by what a wave of tiles more costs
    assert all(at(length) == pytest.approx(exact[length], rel=0.1) for length in every)
