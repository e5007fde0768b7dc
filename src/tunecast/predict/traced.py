"""A job's prediction by the traced engine: find the model, trace its training, replay the tape on the card."""

from __future__ import annotations

from dataclasses import replace

from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.predict.modelled import job_assumptions, require_modelled
from tunecast.predict.prediction import Predicted, job_on_card, prediction_of
from tunecast.tape.card import Card
from tunecast.tape.trace.engine import trace_job
from tunecast.tape.trace.interpreter import tracing_python
from tunecast.tape.trace.run import Limits, Progress

MOST_MICRO_BATCHES = 4


def traced(
    job: Job,
    *,
    exact: bool = False,
    python: str | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Predicted:
    """Trace a job with `python` (None: the one `tracing_python` finds). `exact` traces every layer."""
    require_modelled(job)
    gpu = gpu_named(job.hardware.gpu)
    model = resolve_model(job.model)
    interpreter = tracing_python(python)
    short = job if exact else with_few_micro_batches(job)
    tape = trace_job(short, model.raw, card_of(gpu), exact=exact, python=interpreter, limits=limits, progress=progress)
    held = job_on_card(job, gpu, tape)
    assumptions = [f"architecture from {model.source}", *job_assumptions(job)]
    if short.grad_accum < job.grad_accum:
        assumptions.append(f"the last {job.grad_accum - short.grad_accum} micro-batches of a step repeat those before")
    return Predicted(job, model, held, prediction_of(held, id=job.id, assumptions=assumptions, warnings=model.notes))


def with_few_micro_batches(job: Job) -> Job:
    """The job with at most 5 micro-batches a step: later ones add to gradients that exist and free what they make.

    Odd stays odd. Blocks of one size are taken in turns, and whose turn it is at the optimizer's step moved what was
    reserved by one segment (2 MiB) where 3, 4 and 9 micro-batches were compared.
    """
    most = MOST_MICRO_BATCHES + job.grad_accum % 2
    return replace(job, grad_accum=most) if job.grad_accum > most else job


def card_of(gpu: Gpu) -> Card:
    """What torch code can ask of the card. Where nobody has counted the multiprocessors, the H200's stand in."""
    if gpu.name == "h200-sxm-141gb":
        return Card(total_bytes=gpu.memory_bytes)
    name = f"NVIDIA {gpu.name.upper()}"
    return Card(name, gpu.memory_bytes, gpu.compute_capability, gpu.sm_count or Card.sm_count)
