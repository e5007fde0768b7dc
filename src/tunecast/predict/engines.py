"""One question, two engines: what does a job need? `traced` runs the real code, `analytic` the closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunecast.errors import NotResolved, TunecastError, Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.job.readers import read_jobs
from tunecast.predict.modelled import require_engine
from tunecast.predict.prediction import Predicted, Prediction

if TYPE_CHECKING:
    from tunecast.predict.calibration import Calibration

DEFAULT_ENGINE = "analytic"


def predicted(
    job: Job, *, engine: str = DEFAULT_ENGINE, timed: bool = False, calibration: Calibration | None = None, **how: Any
) -> Predicted:
    """The prediction with the tape and replays behind it. `how` is the traced engine's: exact, python, progress.

    `timed`: its time will be asked for too, so the closed form keeps what it needs for that; `calibration` is of the
    machine it is asked for.
    """
    require_engine(engine)
    if engine == "traced":
        from tunecast.predict.traced import traced

        return traced(job, **how)
    from tunecast.predict.analytic import analytic

    return analytic(job, timed=timed, calibration=calibration)


def prediction(
    job: Job | Mapping[str, Any] | str, *, engine: str = DEFAULT_ENGINE, exact: bool = False, python: str | None = None
) -> Prediction:
    """What a job needs: a `Job`, its fields as a mapping, a file that holds one, or a model's name."""
    if isinstance(job, str):
        job = the_job(job)
    elif not isinstance(job, Job):
        job = job_from_dict(job)
    return predicted(job, engine=engine, timed=True, exact=exact, python=python).prediction


def the_job(source: str, overrides: Mapping[str, object] | None = None) -> Job:
    """The one job of a file or a model's name; overrides as flags give them."""
    jobs = list(read_jobs(source, overrides))
    if len(jobs) != 1:
        raise UsageError(f"{source}: got {len(jobs)} jobs; allowed: one. To fix: ask for each of read_jobs({source!r})")
    if isinstance(jobs[0], Job):
        return jobs[0]
    kinds = {kind.code: kind for kind in (UsageError, NotResolved, Unsupported)}
    raise kinds.get(jobs[0].code, TunecastError)(jobs[0].message, field=jobs[0].field)
