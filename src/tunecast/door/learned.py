"""What was learned from measured runs: shown, compared with the shipped prediction, and taken back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import exp
from typing import TYPE_CHECKING, ClassVar

from tunecast.door.predict import calibration_for
from tunecast.door.read import Source, read_on_card
from tunecast.errors import TunecastError, UsageError
from tunecast.learn import lessons
from tunecast.learn.learning import learn
from tunecast.learn.lessons import Reset
from tunecast.prediction import engines
from tunecast.prediction.lessons.correction import (
    HALF,
    Correction,
    Learned,
    LearnedContext,
    LeftOut,
    Observed,
    learned_range,
    posterior,
)
from tunecast.prediction.prediction import Prediction
from tunecast.records import dataclass, replace
from tunecast.result import Result

if TYPE_CHECKING:
    from tunecast.learn.comparing import RunsComparison


@dataclass(frozen=True)
class LearnedGroup(Result):
    """Of runs of one stack and model: what a step is now taken to be of the shipped prediction, with its 80 % range."""

    waits_for: str
    stack: str
    model: str
    hosts: tuple[str, ...]
    runs: int
    ratio: float
    range: tuple[float, float]
    newest: str


@dataclass(frozen=True)
class LearnedCard(Result):
    gpu: str
    runs: int
    """That count."""
    groups: tuple[LearnedGroup, ...]
    left_out: tuple[LeftOut, ...]
    """By id, with the reason."""
    context: LearnedContext | None
    start_s: tuple[float, float, float] | None
    """The middle, the least and the most."""


@dataclass(frozen=True)
class CalibrationShown(Result):
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "cards", "resets")
    schema: ClassVar[str] = "tunecast.calibration-shown/1"

    cards: tuple[LearnedCard, ...]
    resets: tuple[Reset, ...]


@dataclass(frozen=True)
class CalibrationSide(Result):
    """Of one prediction."""

    step_s: float | None
    step_range_s: tuple[float, float] | None
    total_s: float | None
    total_range_s: tuple[float, float] | None
    device_bytes: int
    device_range_bytes: tuple[int, int]
    fits: bool


@dataclass(frozen=True)
class CalibrationDiff(Result):
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "gpu", "since", "without", "learned", "runs", "ratio")
    schema: ClassVar[str] = "tunecast.calibration-diff/1"

    gpu: str
    since: str | None
    """Where given, `without` has what runs before that day taught; else nothing that was learned."""
    without: CalibrationSide
    learned: CalibrationSide
    runs: int
    ratio: float
    """Of the step, by all runs."""


@dataclass(frozen=True)
class CalibrationReset(Result):
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "gpu", "before", "undone")
    schema: ClassVar[str] = "tunecast.calibration-reset/1"

    gpu: str | None
    """None: all cards."""
    before: str
    undone: bool


def calibration(gpu: str | None = None, environ: Mapping[str, str] = os.environ) -> CalibrationShown:
    """What was learned of a card, or of every card with runs."""
    names = [_card(gpu)] if gpu is not None else lessons.cards_with_runs(environ)
    cards = (card_of(name, lessons.learn_card(name, environ)) for name in names)
    return CalibrationShown(tuple(cards), tuple(lessons.resets(environ)))


def card_of(name: str, found: Learned) -> LearnedCard:
    return LearnedCard(
        name,
        len(found.runs),
        tuple(groups_of(found.runs)),
        found.left_out,
        found.contexts.get(name),
        found.starts.get(name),
    )


def groups_of(runs: Iterable[Observed]) -> Iterable[LearnedGroup]:
    everything = tuple(runs)
    for waits, stack, model in sorted({(run.waits, run.stack, run.model) for run in everything}):
        of_card = tuple(run for run in everything if run.waits == waits)
        own = [run for run in of_card if (run.stack, run.model) == (stack, model)]
        spread = sum(sorted(run.spread for run in own)) / len(own)
        found: Correction = posterior(of_card, stack, model, spread)
        low, high = learned_range(-HALF * spread, HALF * spread, found)
        hosts = tuple(sorted({run.host for run in own if run.host}))
        ends = found.ratio * exp(low), found.ratio * exp(high)
        yield LearnedGroup(waits, stack, model, hosts, len(own), found.ratio, ends, max(run.began for run in own))


def diff_calibration(
    job: Source, overrides: Mapping[str, object] | None = None, *, since: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> CalibrationDiff:  # fmt: skip
    """A job predicted with what its card's runs taught, and without; or with what those before `since` had taught."""
    asked = read_on_card(job, overrides)
    measured = calibration_for(asked)
    card = _card(asked.hardware.gpu)
    learned = lessons.learned_of(card, environ) or learn([])
    before = None if since is None else lessons.learn_card(card, environ, until=since)
    without, now = (engines.predict(asked, calibration=measured, learned=each) for each in (before, learned))
    correction = now.timing.learned
    return CalibrationDiff(
        card,
        since,
        figures_of(without),
        figures_of(now),
        0 if correction is None else correction.runs,
        1.0 if correction is None else correction.ratio,
    )


def figures_of(found: Prediction) -> CalibrationSide:
    time, memory = found.time, found.memory
    return CalibrationSide(
        None if time is None else time.step_s,
        None if time is None else (time.low_s, time.high_s),
        None if time is None else time.total_s,
        None if time is None else time.total_range_s,
        memory.device_bytes,
        memory.range_bytes.device,
        found.fits,
    )


def reset_calibration(
    gpu: str | None = None, *, everything: bool = False, undo: bool = False, environ: Mapping[str, str] = os.environ
) -> CalibrationReset:
    """Runs of a card, or of all, that began before now no longer count; `undo` takes the last such reset back."""
    if (gpu is None) != everything:
        raise UsageError("got neither or both; allowed: --gpu NAME, or --all", field="--gpu")
    card = None if gpu is None else _card(gpu)
    if undo:
        return CalibrationReset(card, lessons.undo_reset(card, environ).before, undone=True)
    from tunecast.learn.runs_store.rows import now_text

    return CalibrationReset(card, lessons.reset(card, now_text(), environ).before, undone=False)


def compare_with_runs(
    job: Source, overrides: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ
) -> RunsComparison:
    """The measured runs nearest to a job. Where the store cannot be read, of those that ship, and its words say why."""
    from tunecast.job.further import models_of
    from tunecast.learn.comparing import compare_runs, own_records

    asked = read_on_card(job, overrides)
    try:
        own, problem = own_records(environ), ""
    except TunecastError as error:
        own, problem = [], f"; your own runs are left out: {error.message}"
    found = compare_runs(asked, models_of(asked), own)
    return replace(found, words=found.words + problem)


def _card(name: str) -> str:
    from tunecast.hardware.catalog import gpu

    return gpu(name).name
