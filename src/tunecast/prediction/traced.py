"""A job's prediction by the traced engine: find the model, trace its training, replay the tape on the card."""

from __future__ import annotations

from contextlib import suppress

from tunecast.errors import Unsupported
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.prediction.memory.pages import managed_bytes
from tunecast.prediction.memory.vllm import vllm_share
from tunecast.prediction.modelled import card_of, dtype_assumption, job_assumptions, require_traceable, unused_fields
from tunecast.prediction.on_card import job_on_card
from tunecast.prediction.outside.needs import Outside
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.values import Timing
from tunecast.tape.build.families import is_written
from tunecast.tape.build.fill_in import fill_in_of
from tunecast.tape.op import Tape
from tunecast.tape.shorten import steps_of, with_few_micro_batches
from tunecast.tape.step import Step, step_of
from tunecast.tape.trace.engine import trace_job
from tunecast.tape.trace.interpreter import tracing_python
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.run import Progress

OF_THE_TRACE = (
    "time: of the traced operations; the Python calls of checkpointing leave no trace, so launch-bound steps may be "
    "longer"
)


def traced(
    job: Job,
    *,
    exact: bool = False,
    python: str | None = None,
    limits: TraceLimits | None = None,
    progress: Progress | None = None,
) -> Prediction:
    """Trace a job with `python` (None: the one `tracing_python` finds). `exact` traces every layer."""
    model = resolve_model(job.model)
    unsaid = dtype_assumption(job, model)
    job = fill_in_of(job, model)
    require_traceable(job)
    gpu = gpu_named(job.hardware.gpu)
    interpreter = tracing_python(python)
    short = job if exact else with_few_micro_batches(job)
    tape = trace_job(short, model.raw, card_of(gpu), exact=exact, python=interpreter, limits=limits, progress=progress)

    def clock(files: Outside | None) -> Timing:
        from tunecast.prediction.time.timing import timing

        if is_written(model.raw):
            # the closed form has the same operations, and what a trace does not see: layouts, saved tensors' hooks
            with suppress(Unsupported):
                return timing(job, model, gpu, files)
        priced = timing(job, model, gpu, files, traced_steps(tape, job))
        return priced._replace(assumptions=(*priced.assumptions, OF_THE_TRACE))

    return Prediction(
        job,
        model,
        job_on_card(job, gpu, tape, managed_bytes(job, model), vllm=vllm_share(job, model, gpu)),
        assumptions=[f"architecture: {model.source}", *unsaid, *job_assumptions(job, short)],
        warnings=(*model.notes, *unused_fields(job, model)),
        clock=clock,
    )


def traced_steps(tape: Tape, job: Job) -> dict[int, Step]:
    """By padded length: of each the first step but the run's first, which is like no other.

    Lengths of samples that were not traced (`data.lengths`) are priced by the closed form, where it knows the model.
    """
    found: dict[int, Step] = {}
    steps = tape.steps()
    for number, length in enumerate(steps_of(job)):
        if number and number in steps and length not in found:
            found[length] = step_of(steps[number], None, job.grad_accum)
    return found
