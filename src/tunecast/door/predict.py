"""What a job needs, how long it takes and, where asked for, what its machines cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunecast.door.read import Source, read_on_card
from tunecast.job.job import Job
from tunecast.prediction import engines
from tunecast.prediction.prediction import Prediction

if TYPE_CHECKING:
    from tunecast.planning.price import Rent
    from tunecast.prediction.lessons.correction import Learned
    from tunecast.prediction.time.calibration import Calibration


def predict(
    job: Source,
    overrides: Mapping[str, object] | None = None,
    *,
    engine: str | None = None,
    exact: bool = False,
    python: str | None = None,
    cost: bool = False,
    calibrated: bool = True,
    timed: bool = True,
    once: bool = False,
    **how: Any,
) -> Prediction:
    """The prediction of a `Job`, of its fields as a mapping, of a file that holds one, or of a model's name.

    `overrides` are fields by dotted name, as `read` takes them.

    engine      "analytic", the closed form, or "traced", which runs the real training code with `python` (None: the
                interpreter that is found), every layer of it where `exact`; `how`: its limits and its progress. None:
                the closed form, and an architecture it does not know is traced
    cost        what the job's own machines cost, too, which takes reading the offers
    calibrated  with the prices that `tunecast calibrate` measured on this machine, where it is of the job's card, and
                with what was learned from measured runs on such a card
    timed       False: memory alone will be read, which is faster; time is there all the same
    once        no job of other sizes will be asked for
    """
    job = read_on_card(job, overrides)
    known = known_of(job, calibrated=calibrated and engine != "traced", timed=timed)
    found = engines.predict(job, engine=engine, timed=timed, once=once, exact=exact, python=python, **known, **how)
    return found.with_cost(rent_of(found)) if cost else found


def known_of(job: Job, *, calibrated: bool = True, timed: bool = True) -> dict[str, Any]:
    """What a prediction is brought along: of this machine's card, and of runs on such cards."""
    if not calibrated:
        return {}
    return {"calibration": calibration_for(job) if timed else None, "learned": learned_for(job)}


def learned_for(job: Job) -> Learned | None:
    """What measured runs on the job's card say of the next; None where none are kept."""
    from tunecast.learn.lessons import has_runs, learned_of

    if not has_runs():
        return None
    from tunecast.hardware.catalog import gpu

    return learned_of(gpu(job.hardware.gpu).name)


def calibration_for(job: Job) -> Calibration | None:
    """What `tunecast calibrate` measured of this kind of card on this machine."""
    from tunecast.hardware.catalog import gpu
    from tunecast.learn.store import own_calibration

    return own_calibration(gpu(job.hardware.gpu).name)


def rent_of(prediction: Prediction) -> Rent | None:
    """None where nobody rents out exactly these machines."""
    from datetime import date

    from tunecast.planning import price

    return price.rent_of(prediction, date.today())
