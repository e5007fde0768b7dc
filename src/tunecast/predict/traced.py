"""A job's prediction by the traced engine: find the model, trace its training, replay the tape on the card."""

from __future__ import annotations

from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.predict.modelled import card_of, job_assumptions, require_traceable
from tunecast.predict.prediction import Predicted, job_on_card, prediction_of
from tunecast.tape.shorten import with_few_micro_batches
from tunecast.tape.trace.engine import trace_job
from tunecast.tape.trace.interpreter import tracing_python
from tunecast.tape.trace.limits import Limits
from tunecast.tape.trace.run import Progress


def traced(
    job: Job,
    *,
    exact: bool = False,
    python: str | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Predicted:
    """Trace a job with `python` (None: the one `tracing_python` finds). `exact` traces every layer."""
    require_traceable(job)
    gpu = gpu_named(job.hardware.gpu)
    model = resolve_model(job.model)
    interpreter = tracing_python(python)
    short = job if exact else with_few_micro_batches(job)
    tape = trace_job(short, model.raw, card_of(gpu), exact=exact, python=interpreter, limits=limits, progress=progress)
    held = job_on_card(job, gpu, tape)
    assumptions = [f"architecture from {model.source}", *job_assumptions(job, short)]
    return Predicted(job, model, held, prediction_of(held, id=job.id, assumptions=assumptions, warnings=model.notes))
