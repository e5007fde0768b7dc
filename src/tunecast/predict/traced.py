"""A job's prediction by the traced engine: find the model, trace its training, replay the tape on the card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tunecast.errors import NotResolved, TunecastError, Unsupported, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.job.model import ModelConfig, resolve_model
from tunecast.job.readers import read_jobs
from tunecast.predict.modelled import job_assumptions, require_engine, require_modelled
from tunecast.predict.prediction import OnCard, Prediction, job_on_card, prediction_of
from tunecast.tape.trace.card import Card
from tunecast.tape.trace.engine import trace_job
from tunecast.tape.trace.interpreter import tracing_python
from tunecast.tape.trace.run import Limits, Progress

MOST_MICRO_BATCHES = 4


@dataclass(frozen=True)
class Traced:
    """A prediction and what it was read off, for reports that show more than it says."""

    job: Job
    model: ModelConfig
    held: OnCard
    prediction: Prediction


def traced(
    job: Job,
    *,
    exact: bool = False,
    python: str | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Traced:
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
    return Traced(job, model, held, prediction_of(held, id=job.id, assumptions=assumptions, warnings=model.notes))


def prediction(
    job: Job | Mapping[str, Any] | str, *, engine: str = "traced", exact: bool = False, python: str | None = None
) -> Prediction:
    """What a job needs: a `Job`, its fields as a mapping, a file that holds one, or a model's name."""
    require_engine(engine)
    if isinstance(job, str):
        job = the_job(job)
    elif not isinstance(job, Job):
        job = job_from_dict(job)
    return traced(job, exact=exact, python=python).prediction


def the_job(source: str) -> Job:
    """The one job of a file or a model's name."""
    jobs = list(read_jobs(source))
    if len(jobs) != 1:
        raise UsageError(f"{source}: got {len(jobs)} jobs; allowed: one. To fix: ask for each of read_jobs({source!r})")
    if isinstance(jobs[0], Job):
        return jobs[0]
    kinds = {kind.code: kind for kind in (UsageError, NotResolved, Unsupported)}
    raise kinds.get(jobs[0].code, TunecastError)(jobs[0].message, field=jobs[0].field)


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
