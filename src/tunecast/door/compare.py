"""What differs between two jobs, and what each difference costs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from tunecast.advise.compare import steps_between
from tunecast.door.asking import Predictions, Tick, extra, no_tick
from tunecast.door.read import Source, read_on_card
from tunecast.planning.comparison import Comparison, Rents
from tunecast.planning.price import Rent, rent_of
from tunecast.prediction.engines import DEFAULT_ENGINE
from tunecast.prediction.prediction import Prediction


def compare(
    job: Source,
    other: Source | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    engine: str = DEFAULT_ENGINE,
    python: str | None = None,
    calibrated: bool = True,
    tick: Tick = no_tick,
    **to: object,
) -> Comparison:
    """Two jobs, or a job and itself with other values: `compare(job, rank=64)`.

    `overrides` hold for both. Each field that differs is changed one after the other, and what one costs depends on
    those before it; the sum does not.
    """
    before = read_on_card(job, overrides)
    after = read_on_card(job if other is None else other, {**(overrides or {}), **to})
    predictions = Predictions(engine, python, timed=True, calibrated=calibrated, tick=tick)
    first, last = predictions.predict(before), predictions.predict(after)
    steps = tuple(steps_between(before, after, predictions.predict))
    problems: list[str] = []

    def rent(side: Prediction) -> Rent | None:
        return extra("the cost", lambda: rent_of(side, date.today()), problems)

    return Comparison(first, last, Rents(rent(first), rent(last)), steps, tuple(problems))
