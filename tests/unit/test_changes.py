"""Which changes are tried, and what they are measured by."""

from __future__ import annotations

from typing import Any

from tunecast.advise.changes import changes_tried
from tunecast.hardware import gpu
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.job.model import resolve_model
from tunecast.prediction.on_card import job_on_card
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.values import Timing
from tunecast.tape.op import Alloc, Begin, Phase, Role, Tape
from tunecast.units import MIB


def predicted(job: Job) -> Prediction:
    """20 MiB a row, 100 less where prepare_model_for_kbit_training casts nothing; the time is not asked."""
    weights = 200 * MIB if job.quantization.prepare_kbit else 100 * MIB
    events = (Alloc(0, weights, Role.WEIGHTS), Begin(Phase.FORWARD), Alloc(1, 20 * MIB * job.micro_batch))

    def never(_: object) -> Timing:
        raise AssertionError("advice on memory prices nothing")

    return Prediction(job, resolve_model(job.model), job_on_card(job, gpu("h200"), Tape(events)), clock=never)


def tried(**fields: Any) -> dict[str, int]:
    job = job_from_dict({"model": "gpt2", **fields})
    found = changes_tried(job, predicted(job), predicted)
    return {next(iter(change.overrides)): change.saves_bytes // MIB for change in found}


def test_what_it_needs_decides() -> None:
    assert tried(method="qlora", micro_batch=4) == {"quantization.prepare_kbit": 100, "micro_batch": 40}


def test_nothing_to_prepare_where_nothing_is_quantised() -> None:
    assert tried(method="lora", micro_batch=4) == {"micro_batch": 40}
