"""What measures a launched job, as files beside it: record.py, the sources it runs, and what was predicted.

The journal is record/run.jsonl in the job's folder, and that of each rank beside it.
"""

from __future__ import annotations

import json
from importlib.resources import files

from tunecast.job.job import Job
from tunecast.launching.rendering import (
    RECORDER,
    RECORDER_EXPECTED,
    RECORDER_SOURCES,
    Order,
    TrainingProgram,
)
from tunecast.learn.expected import expected_of
from tunecast.learn.inside.outside import OWN, PACKAGE
from tunecast.learn.recordable import job_fields
from tunecast.prediction.prediction import Prediction
from tunecast.records import replace

SOURCES = (
    *("__init__.py", "batches.py", "callback.py", "export.py", "host_memory.py", "journal.py", "live.py", "machine.py"),
    *("measure.py", "merge.py", "nvml.py", "outside.py", "process.py", "sampler.py", "sitecustomize.py", "telling.py"),
)


def with_recorder(program: TrainingProgram, job: Job, found: Prediction, *, cpu: bool) -> TrainingProgram:
    """The training with what measures it. Without cards nothing of the prediction holds, so nothing is compared."""
    expected = {"job": job_fields(job)} if cpu else expected_of(job, found)
    text = json.dumps(expected, indent=1, sort_keys=True) + "\n"
    return replace(program, files={**program.files, **recorder_files(), RECORDER_EXPECTED: text})


def with_price(order: Order) -> Order:
    """Where the machines have one: what is left to pay is said beside the time that is left."""
    files_of, price = order.program.files, order.usd_per_hour
    if price is None or RECORDER_EXPECTED not in files_of:
        return order
    expected = {**json.loads(files_of[RECORDER_EXPECTED]), "usd_per_hour": price}
    text = json.dumps(expected, indent=1, sort_keys=True) + "\n"
    return replace(order, program=replace(order.program, files={**files_of, RECORDER_EXPECTED: text}))


def recorder_files() -> dict[str, str]:
    """The same for every job."""
    inside = files("tunecast.learn") / "inside"
    texts = {name: (inside / name).read_text(encoding="utf-8").replace(OWN, PACKAGE) for name in SOURCES}
    sources = "".join(f"==> {name} <==\n{text}" for name, text in texts.items())
    return {RECORDER: (inside / "record.py").read_text(encoding="utf-8"), RECORDER_SOURCES: sources}
