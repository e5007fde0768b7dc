"""What a job does not say is told, with what another value would change: each effect is a prediction of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.advise.unstated import effects, taken, worth_telling
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.prediction.engines import analytic
from tunecast.prediction.prediction import Prediction
from tunecast.records import replace
from tunecast.report.run.unstated import taken_lines

pytestmark = pytest.mark.whole

SMALL = {"model": "llama-3.2-1b", "hardware": {"gpu": "h200"}}


def predicted(job: Job) -> Prediction:
    return analytic(job, timed=True)


def fields_of(given: dict[str, Any]) -> list[str]:
    return [each.field for each in taken(predicted(job_from_dict({**SMALL, **given})).job)]


def test_what_is_given_is_not_told() -> None:
    assert fields_of({}) == [
        *("stack", "method", "micro_batch", "seq_len", "data.lengths", "weights_dtype"),
        "optimizer",
        "gradient_checkpointing",
    ]
    assert "hardware.gpu" in [each.field for each in taken(predicted(job_from_dict({"model": "llama-3.2-1b"})).job)]
    assert fields_of({"method": "full", "stack": "transformers", "micro_batch": 8}) == [
        *("seq_len", "data.lengths", "weights_dtype"),
        "optimizer",
        "gradient_checkpointing",
    ]
    assert {"lora.targets", "lora.rank"} < set(fields_of({"method": "lora"}))
    assert {"data.epochs", "run.save_steps"} < set(fields_of({"data": {"samples": 1000}}))
    assert "data.epochs" not in fields_of({"data": {"samples": 1000, "epochs": 3}}), "given, though it is the default"
    assert "data.epochs" not in fields_of({"data": {"samples": 1000}, "run": {"max_steps": 10}})


@pytest.mark.parametrize("method", ["full", "lora"])
def test_an_effect_is_what_predicting_it_says(method: str) -> None:
    job = job_from_dict({**SMALL, "method": method, "data": {"samples": 1000}})
    done = predicted(job)
    found = {each.taken.field: each for each in effects(done, taken(done.job), predicted)}
    one = predicted(replace(job, data=replace(job.data, epochs=1.0)))
    assert found["data.epochs"].total_s == pytest.approx(one.time.total_s)  # type: ignore[index]
    assert found["data.epochs"].more_bytes == 0
    rows = predicted(replace(job, micro_batch=1, grad_accum=8))
    less = rows.smallest_capacity_bytes - done.smallest_capacity_bytes
    assert found["micro_batch"].more_bytes == less < 0


def test_the_lines() -> None:
    given = {"stack": "transformers", "method": "lora", "micro_batch": 1, "seq_len": 512}
    done = predicted(job_from_dict({**SMALL, **given}))
    every = taken(done.job)
    lines = taken_lines(every, worth_telling(effects(done, every, predicted), done), "fits")
    assert lines[0].startswith("bfloat16 weights (the checkpoint's); float32: ")
    assert lines[1].startswith("adapters on q_proj, v_proj (PEFT's choice); all-linear: ")
    assert taken_lines([], [], "fits") == []


def test_who_generates_is_told_where_vllm_could() -> None:
    """On a fast card `generate()` takes six times as long."""
    done = predicted(job_from_dict({**SMALL, "task": "grpo", "method": "lora", "data": {"samples": 100}}))
    engine = next(each for each in taken(done.job) if each.field == "rl.engine")
    (line,) = taken_lines([engine], worth_telling(effects(done, [engine], predicted), done), "fits")
    assert line.startswith("completions by transformers' generate() (TRL's default); vLLM: ")
    assert "rl.engine" not in fields_of({"task": "grpo", "rl": {"engine": "vllm"}})
    assert "vLLM generates with far fewer (rl.engine: vllm)" in done.time.why[0]  # type: ignore[union-attr]
