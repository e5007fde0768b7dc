"""One question, two engines: what does a job need? `analytic` is the closed form, `traced` runs the real code.

job ──► model ──► its tape, built on paper ──► replayed on the card ──► Prediction
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tunecast.errors import TunecastError, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.further import models_of
from tunecast.job.job import Job
from tunecast.job.model import BUNDLED, ModelConfig
from tunecast.prediction.memory.pages import managed_bytes
from tunecast.prediction.memory.vllm import vllm_share
from tunecast.prediction.modelled import (
    card_of,
    dtype_assumption,
    job_assumptions,
    require_engine,
    require_modelled,
    unused_fields,
)
from tunecast.prediction.on_card import context_told, job_on_card
from tunecast.prediction.outside.needs import Outside
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.values import Timing
from tunecast.tape.build.families import is_written
from tunecast.tape.build.fill_in import fill_in_of
from tunecast.tape.build.job_runs import SHARED, Builder, fold_job
from tunecast.tape.shorten import with_few_micro_batches

if TYPE_CHECKING:
    from tunecast.prediction.lessons.correction import Learned
    from tunecast.prediction.time.calibration import Calibration


DEFAULT_ENGINE = "analytic"


def predict(
    job: Job, *, engine: str | None = DEFAULT_ENGINE, timed: bool = True, once: bool = False, brief: bool = False,
    calibration: Calibration | None = None, learned: Learned | None = None, **how: Any,
) -> Prediction:  # fmt: skip
    """The job's prediction. `how` is the traced engine's: exact, python, limits, progress.

    `engine` None: the closed form where it knows the architecture; one it does not know is traced where that is
    possible, else taken for the nearest, with a warning that says why it was not traced. `timed`: its time will be read
    too, so one building of the tape serves both; memory alone is faster without. `once`: no job of other sizes will be
    asked for, so nothing is built to serve one. `brief`: of a job's own batches the closed form takes the first alone.
    `calibration` is of the machine it is asked for, `learned` of runs there.
    """
    if engine is not None:
        require_engine(engine)
    warning = None
    if engine == "traced" or (engine is None and not is_written(models_of(job).raw)):
        from tunecast.prediction.traced import traced
        from tunecast.tape.trace.limits import TraceLimits

        if engine is None:
            limits = how.get("limits") or TraceLimits()
            how["limits"] = limits._replace(seconds=min(limits.seconds, UNASKED_S))
        try:
            return traced(job, **how)
        except TunecastError as error:
            if engine is not None:
                from tunecast.prediction import remedies  # hardly any job needs it

                raise remedies.of_tracer(error, job) if isinstance(error, UsageError) else error from None
            warning = f"not traced, so the architecture is guessed: {_in_short(error.message)}"
    return analytic(job, timed=timed, once=once, brief=brief, calibration=calibration, learned=learned, warning=warning)


LONGEST_REASON = 240
UNASKED_S = 120.0
"""Nobody asked for a trace: longer than this nobody waits for it."""


def _in_short(message: str) -> str:
    """A refusal without the closed form as its remedy; transformers lists all it knows."""
    told = message.partition(" To fix: --engine analytic")[0]
    return told if len(told) <= LONGEST_REASON else f"{told[:LONGEST_REASON].partition('. ')[0]}"


def analytic(
    job: Job, *, timed: bool = True, once: bool = False, brief: bool = False, calibration: Calibration | None = None,
    learned: Learned | None = None, warning: str | None = None,
) -> Prediction:  # fmt: skip
    """By the closed form: find the model, build its tape on paper, replay it on the card."""
    model = models_of(job)
    builder = Builder(symbolic=False) if once else SHARED

    def predict(of: ModelConfig) -> Prediction:
        return _predict(job, of, timed, brief, builder, (calibration, learned), warning)

    def guard() -> AbstractContextManager[None]:
        """A model that came with this package was built before; of any other config.json the key at fault is named."""
        if model.source.startswith(BUNDLED):
            return nullcontext()
        from tunecast.prediction.culprit import config_errors

        return config_errors(model, lambda of: predict(of).to_dict())

    try:
        with guard():
            return predict(model).guarded(guard)
    except TunecastError as error:
        from tunecast.prediction import remedies  # hardly any job needs it

        raise remedies.of_paper(error, job, model) from None


def _predict(
    job: Job, model: ModelConfig, timed: bool, brief: bool, builder: Builder,
    known: tuple[Calibration | None, Learned | None], warning: str | None,
) -> Prediction:  # fmt: skip
    """`known` of the machine: what was measured of its card, and learned from its runs."""
    calibration, learned = known
    context = None if learned is None else learned.contexts.get(gpu_named(job.hardware.gpu).name)
    unsaid = dtype_assumption(job, model)
    job = fill_in_of(job, model)
    require_modelled(job)
    gpu = gpu_named(job.hardware.gpu)
    short = with_few_micro_batches(job)
    folded = fold_job(short, model.raw, card_of(gpu), keeps_ops=timed, builder=builder)
    own = None
    if job.data.has_lengths:
        from tunecast.prediction.data.own_batches import AT_ONCE, own_run, with_tape  # few jobs say

        own = own_run(job, model.raw, card_of(gpu), budget=AT_ONCE if brief else None)
        if own is not None:
            folded = with_tape(folded, short, own, model.raw, card_of(gpu))

    def clock(files: Outside | None) -> Timing:
        from tunecast.prediction.time.timing import timing

        return timing(job, model, gpu, files, folded, calibration, learned)

    return Prediction(
        job,
        model,
        job_on_card(job, gpu, folded, managed_bytes(job, model), own, vllm_share(job, model, gpu), context),
        engine="analytic",
        assumptions=[
            f"architecture: {model.source}",
            *unsaid,
            *job_assumptions(job, short, own),
            *context_told(context),
        ],
        warnings=(*filter(None, [warning]), *model.notes, *unused_fields(job, model)),
        clock=clock,
        builder=builder,
    )
