"""Which engine a refusal may send somebody to: only one that answers the job.

What the tape refuses names `--engine traced` where real code would know better, and the traced engine names
`--engine analytic` where its recipe is not the job's. Whether the other engine takes the job is known here alone, so
here it is asked before the sentence is said. Where it does not, the user's own script is what remains.
"""

from __future__ import annotations

import re

from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig, is_native
from tunecast.prediction.modelled import require_traceable
from tunecast.tape.build.fill_in import fill_in_of

OTHER_ENGINE = re.compile(r"--engine (?:traced|analytic)(?: \(it needs torch: [^)]*\))?(?:, or trace your own .*`)?")


def of_paper(error: TunecastError, job: Job, model: ModelConfig) -> TunecastError:
    """A refusal of the closed form, as it may be said."""
    if "--engine traced" not in error.message or _traced_would(job, model):
        return error
    return type(error)(_with_own_script(error.message, job), field=error.field)


def of_tracer(error: TunecastError, job: Job) -> TunecastError:
    """One of the traced engine's rules."""
    if "--engine analytic" not in error.message or _analytic_would(job):
        return error
    return type(error)(_with_own_script(error.message, job), field=error.field)


def _traced_would(job: Job, model: ModelConfig) -> bool:
    try:
        require_traceable(fill_in_of(job, model))
    except TunecastError:
        return False
    return is_native(model)


def _analytic_would(job: Job) -> bool:
    from tunecast.prediction.engines import analytic  # which asks this module in turn

    try:
        analytic(job, timed=False)
    except TunecastError:
        return False
    return True


def _with_own_script(message: str, job: Job) -> str:
    return OTHER_ENGINE.sub(f"trace your own script, {_command(job)}; neither engine models this job", message)


def _command(job: Job) -> str:
    cards, nodes = job.hardware.gpus, job.hardware.nodes
    ranks = f" --nproc-per-node {cards}" if cards > 1 else ""
    machines = f" --nnodes {nodes}" if nodes > 1 else ""
    return f"`tunecast trace{ranks}{machines} -- train.py`"
