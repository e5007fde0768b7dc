"""Commands that ask an engine many times: which engine, the same question only once, and the seconds on stderr."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tunecast.cli.terminal import Progress
from tunecast.hardware.catalog import meant_by
from tunecast.job.job import Job
from tunecast.predict import engines
from tunecast.predict.modelled import require_engine
from tunecast.predict.prediction import Predicted

QUIET_S = 1.0
"""Shorter work needs no line that counts seconds."""


def add_asking_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is answered")
    group.add_argument(
        "--engine", metavar="NAME", default=engines.DEFAULT_ENGINE, help=f"default: {engines.DEFAULT_ENGINE}"
    )
    group.add_argument("--python", metavar="PATH", help="with --engine traced: the interpreter that has your torch")
    group.add_argument("--json", action="store_true", help="JSON instead of text")


def say_card(job: Job) -> None:
    """Which card a size was taken for, where the answer has no place for it."""
    given = job.hardware.gpu
    meant = meant_by(given)
    if meant.is_size and (taken := meant.note(given)) is not None:
        print(f"tunecast: {taken}", file=sys.stderr)


class Asking:
    """`predict(job)` for as long as the `with` lasts. Jobs are values, so each is asked for once.

    `timed`: time is asked for too, with the prices measured on this machine unless the command was told not to.
    """

    def __init__(self, arguments: argparse.Namespace, label: str, *, timed: bool = False) -> None:
        require_engine(arguments.engine)
        self.engine: str = arguments.engine
        self._how: Mapping[str, Any] = {} if arguments.python is None else {"python": arguments.python}
        self._progress = Progress(label)
        self._began_s = time.monotonic()
        self._known: dict[Job, Predicted] = {}
        self._timed = timed
        self._calibrated = timed and not arguments.no_calibration

    @property
    def asked(self) -> int:
        return len(self._known)

    def predict(self, job: Job) -> Predicted:
        if job not in self._known:
            passed_s = time.monotonic() - self._began_s
            if passed_s >= QUIET_S:
                self._progress(passed_s)
            self._known[job] = engines.predicted(job, engine=self.engine, **self._how, **self._clock(job))
        return self._known[job]

    def _clock(self, job: Job) -> dict[str, Any]:
        if not self._timed or self.engine != engines.DEFAULT_ENGINE:
            return {}
        from tunecast.cli.predict import own_prices

        return {"timed": True, "calibration": own_prices(job) if self._calibrated else None}

    def __enter__(self) -> Asking:
        self._progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.__exit__(kind, error, at)
