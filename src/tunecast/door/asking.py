"""A question that is many predictions: each job is asked for once, and what goes with an answer cannot take it away."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from tunecast.door.predict import known_of
from tunecast.errors import DEBUG, TunecastError, internal_error
from tunecast.job.job import Job
from tunecast.prediction import engines
from tunecast.prediction.engines import DEFAULT_ENGINE
from tunecast.prediction.modelled import require_engine
from tunecast.prediction.prediction import Prediction

T = TypeVar("T")
Tick = Callable[[], None]
"""Called before each prediction, by whoever shows that it goes on."""


def no_tick() -> None:
    """Nobody watches."""


class Predictions:
    """Jobs are values, so each is predicted once.

    `timed`: time is asked for too. `calibrated`: with what was measured of this machine and learned from its runs.
    """

    def __init__(
        self,
        engine: str = DEFAULT_ENGINE,
        python: str | None = None,
        *,
        timed: bool = False,
        calibrated: bool = True,
        tick: Tick = no_tick,
    ) -> None:
        require_engine(engine)
        self.engine, self.python, self.timed, self.calibrated, self.tick = engine, python, timed, calibrated, tick
        self._known: dict[Job, Prediction] = {}

    @property
    def count(self) -> int:
        return len(self._known)

    def predict(self, job: Job) -> Prediction:
        if job not in self._known:
            self.tick()
            self._known[job] = engines.predict(job, engine=self.engine, **self._how(job))
        return self._known[job]

    def _how(self, job: Job) -> dict[str, Any]:
        if self.engine != DEFAULT_ENGINE:
            return {} if self.python is None else {"python": self.python}
        return {"timed": self.timed, **known_of(job, calibrated=self.calibrated, timed=self.timed)}


BROKEN = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What a price list nobody can read, or a figure out of its range, raises."""


def extra(what: str, ask: Callable[[], T], problems: list[str]) -> T | None:
    """None where it is not known; where it breaks a line more in `problems`."""
    try:
        return ask()
    except TunecastError:
        return None
    except BROKEN as error:
        if os.environ.get(DEBUG):
            raise
        problems.append(f"{what}: {internal_error(error)}")
        return None
