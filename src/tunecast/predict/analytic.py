"""A job's prediction by the closed form: find the model, build its tape on paper, replay it on the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunecast.errors import TunecastError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.job import Job
from tunecast.job.model import BUNDLED, ModelConfig, resolve_model
from tunecast.predict.modelled import card_of, dtype_assumption, job_assumptions, require_modelled, unused_fields
from tunecast.predict.pages import managed_bytes
from tunecast.predict.prediction import Predicted, Prediction, job_on_card, prediction_of
from tunecast.tape.build.fill_in import fill_in_of
from tunecast.tape.build.short import fold_job
from tunecast.tape.shorten import with_few_micro_batches

if TYPE_CHECKING:
    from tunecast.predict.calibration import Calibration


def analytic(job: Job, *, timed: bool = False, calibration: Calibration | None = None) -> Predicted:
    """`timed`: one building of the tape serves memory and time; memory alone is faster without."""
    model = resolve_model(job.model)
    try:
        return _of_model(job, model, timed, calibration)
    except TunecastError as error:
        from tunecast.predict import remedies  # hardly any job needs it

        raise remedies.of_paper(error, job, model) from None


def _of_model(job: Job, model: ModelConfig, timed: bool, calibration: Calibration | None) -> Predicted:
    if model.source.startswith(BUNDLED):
        return _analytic(job, model, timed, calibration)
    from tunecast.predict.culprit import config_errors

    def whole(model: ModelConfig) -> Prediction:
        return _analytic(job, model, timed, calibration).prediction

    def said() -> Prediction:
        with config_errors(model, whole):
            return done.prediction

    with config_errors(model, whole):
        done = _analytic(job, model, timed, calibration)
    return Predicted(done.job, model, done.held, said)


def _analytic(job: Job, model: ModelConfig, timed: bool, calibration: Calibration | None) -> Predicted:
    unsaid = dtype_assumption(job, model)
    job = fill_in_of(job, model)
    require_modelled(job)
    gpu = gpu_named(job.hardware.gpu)
    short = with_few_micro_batches(job)
    folded = fold_job(short, model.raw, card_of(gpu), keeps_ops=timed)
    own = None
    if job.data.lengths is not None:
        from tunecast.predict.own_batches import own_run, with_tape  # few jobs say

        own = own_run(job, model.raw, card_of(gpu))
        if own is not None:
            folded = with_tape(folded, short, own, model.raw, card_of(gpu))
    held = job_on_card(job, gpu, folded, managed_bytes(job, model), own)
    assumptions = [f"architecture: {model.source}", *unsaid, *job_assumptions(job, short, own)]
    warnings = (*model.notes, *unused_fields(job))

    def said() -> Prediction:
        from tunecast.predict.timing import with_time

        memory = prediction_of(held, id=job.id, engine="analytic", assumptions=assumptions, warnings=warnings)
        return with_time(memory, job, model, gpu, folded, calibration)

    return Predicted(job, model, held, said)
