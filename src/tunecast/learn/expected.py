"""What a run is measured against: its prediction, and the batches ahead of it; `record.json` beside a launched job."""

from __future__ import annotations

from typing import Any

from tunecast.advise.changes import with_fields
from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.job.lengths import sample_lengths
from tunecast.launching.preflight.expected import cards_of
from tunecast.learn.recordable import job_fields, model_shape
from tunecast.prediction import engines
from tunecast.prediction.data.batches import MicroBatch, batches_of
from tunecast.prediction.data.own_batches import MOST_READ
from tunecast.prediction.prediction import Prediction
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.tape.shorten import STEPS

SCHEMA = "tunecast.expected/1"
MOST_RECORDS = 8
"""Steps that are predicted one by one, a fifth of a second each: the first, and the last that are larger than all
before them."""
MOST_RANKS = 8


def expected_of(job: Job, found: Prediction) -> dict[str, Any]:
    """Without a path or a name: it travels with the job."""
    time = found.time
    spans = {} if time is None or time.phases_s is None else time.phases_s
    saves = 0 if time is None else time.checkpoints or 0
    return {
        "schema": SCHEMA,
        "job": job_fields(job),
        "model_shape": model_shape(job),
        "predicted": predicted_of(found),
        "capacity_bytes": found.capacity_bytes,
        "ram_bytes": None if found.outside is None else found.outside.machine_ram_bytes,
        "card": cards_of(job) if job.hardware.gpu else None,
        "steps": None if time is None else time.steps,
        "save_s": spans.get("save", 0.0) / saves if saves else None,
        "records": largest_steps(job),
    }


def predicted_of(found: Prediction) -> dict[str, Any]:
    """As a record holds it."""
    memory, time = found.memory, found.time
    return {
        "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "device_bytes": memory.device_bytes,
        "device_range_bytes": list(memory.range_bytes.device),
        "step_s": None if time is None else time.step_s,
        "low_s": None if time is None else time.low_s,
        "high_s": None if time is None else time.high_s,
        "total_s": None if time is None else time.total_s,
        "total_range_s": None if time is None or time.total_range_s is None else list(time.total_range_s),
        "exactness": found.exactness,
        "learned": None if found.timing.learned is None else found.timing.learned.ratio,
    }


def largest_steps(job: Job) -> list[dict[str, int]]:
    """In the data's own order, the steps whose largest micro-batch is larger than any before, each with the memory that
    it is predicted to take. Nothing where the order, or the lengths, are not known."""
    records = record_steps(job)
    kept = [*records[:1], *records[1:][1 - MOST_RECORDS :]]
    found = []
    for step, batch in kept:
        try:
            nbytes = allocated_bytes(job, batch)
        except TunecastError:
            return []
        found.append({"step": step, "rows": batch.rows, "length": batch.length, "allocated_bytes": nbytes})
    return found


def record_steps(job: Job) -> list[tuple[int, MicroBatch]]:
    """Counted from 1, as trainers count; of any rank."""
    lengths = sample_lengths(job.data)
    if lengths is None or job.lengths is not None or job.data.packing:
        return []
    ranks = ranks_of(job)
    most = max(STEPS, MOST_READ // (job.grad_accum * ranks))
    found: dict[int, MicroBatch] = {}
    for rank in range(min(ranks, MOST_RANKS)):
        batches = batches_of(job, lengths, rank=rank, most_steps=most)
        if batches is None or not batches.known:
            return []
        for number, step in enumerate(batches.steps, start=1):
            largest = max(step, key=tokens_of)
            if number not in found or tokens_of(largest) > tokens_of(found[number]):
                found[number] = largest
    records: list[tuple[int, MicroBatch]] = []
    for number, batch in sorted(found.items()):
        if not records or tokens_of(batch) > tokens_of(records[-1][1]):
            records.append((number, batch))
    return records


def tokens_of(batch: MicroBatch) -> int:
    return batch.rows * batch.length


def allocated_bytes(job: Job, batch: MicroBatch) -> int:
    """Of a run of such batches alone."""
    overrides = {"micro_batch": batch.rows, "seq_len": batch.length, "data.lengths": None, "data.path": None}
    return engines.predict(with_fields(job, overrides), timed=False).memory.allocated_bytes
