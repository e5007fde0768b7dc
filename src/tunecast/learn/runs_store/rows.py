"""A run as one row: what lists show, filter and count, and how near the prediction was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.hardware.catalog import known_gpu
from tunecast.job.names import METHODS
from tunecast.job.registry import bundled_name
from tunecast.learn.record import STATES, MeasuredRun
from tunecast.learn.recordable import ran_as_planned
from tunecast.learn.runs_store.schema import COLUMNS
from tunecast.records import dataclass
from tunecast.result import Result

MEMORIES = ("device_bytes", "reserved_bytes", "allocated_bytes")
"""In the order in which they are compared: the first that was both measured and predicted."""
_SINCE = re.compile(r"([0-9]{1,5}) ?([hdwy])")
_UNIT_DAYS = {"h": 1 / 24, "d": 1, "w": 7, "y": 365}
LONGEST_FILTER = 200


@dataclass(frozen=True)
class RunSummary(Result):
    """Of one run. A ratio is measured over predicted: 1.04 is 4 % more than predicted."""

    id: str
    began: str
    state: str
    source: str
    gpu: str | None
    gpus: int | None
    nodes: int | None
    host: str | None
    model: str | None
    """A bundled name where it has one, else its Hub id; `(llama)` of a folder, by its config.json."""
    method: str | None
    stack: str | None
    memory_bytes: int | None
    """On the device where that was measured, else reserved, else allocated; the prediction is of the same."""
    predicted_memory_bytes: int | None
    step_s: float | None
    predicted_step_s: float | None
    total_s: float | None
    memory_ratio: float | None
    time_ratio: float | None


@dataclass(frozen=True)
class RunFilters:
    """All that are given have to hold."""

    gpu: str | None = None
    model: str | None = None
    method: str | None = None
    state: str | None = None
    since: str | None = None
    """A time in UTC, as records have it."""

    def where(self) -> tuple[str, list[str]]:
        """` WHERE …`, and its values."""
        pairs = [
            (f"{name} = ?", value)
            for name in ("gpu", "model", "method", "state")
            if (value := getattr(self, name)) is not None
        ]
        if self.since is not None:
            pairs.append(("began >= ?", self.since))
        clause = " AND ".join(condition for condition, _ in pairs)
        return (f" WHERE {clause}" if clause else ""), [value for _, value in pairs]


def filters_from(
    gpu: str | None = None,
    model: str | None = None,
    method: str | None = None,
    state: str | None = None,
    since: str | None = None,
    now: str = "",
) -> RunFilters:
    """As people write them: any spelling of a card or model, `30d` for `since`. `now`: a time as records have it."""
    if method is not None and method not in METHODS:
        raise UsageError.at("method", f"got {method[:64]!r}; allowed: {', '.join(METHODS)}")
    if state is not None and state not in STATES:
        raise UsageError.at("state", f"got {state[:64]!r}; allowed: {', '.join(STATES)}")
    card = None if gpu is None else known_gpu(gpu).name
    named = None if model is None else model_name(model[:LONGEST_FILTER])
    return RunFilters(card, named, method, state, None if since is None else moment_of(since, now, "since"))


def moment_of(given: str, now: str, field: str) -> str:
    """`2026-11-01`, or how long ago: `12h`, `30d`, `8w`, `1y`."""
    from datetime import date, datetime, timedelta

    found = _SINCE.fullmatch(given.strip())
    if found is not None:
        ago = timedelta(days=int(found[1]) * _UNIT_DAYS[found[2]])
        try:
            return (datetime.fromisoformat(now) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
        except (OverflowError, ValueError):
            pass
    try:
        return f"{date.fromisoformat(given.strip()).isoformat()}T00:00:00Z"
    except ValueError:
        allowed = "a day such as 2026-11-01, or how long ago: 12h, 30d, 8w, 1y"
        raise UsageError.at(field, f"got {given[:64]!r}; allowed: {allowed}") from None


def now_text() -> str:
    """This second, as records have it."""
    from datetime import UTC, datetime

    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def summary(run: MeasuredRun) -> RunSummary:
    job, hardware, time, predicted = run.job or {}, run.hardware, run.time, run.predicted
    measured_bytes, predicted_bytes = _memories(run)
    step_s = None if time is None else time.step_s
    total_s = None if time is None else time.total_s
    foreseen_s = None if predicted is None else predicted.step_s
    whole_s = None if predicted is None else predicted.total_s
    ran_on = {} if hardware is None else hardware.to_dict()
    compared = run.state in ("done", "stopped") and ran_as_planned(job, ran_on)
    return RunSummary(
        run.id,
        run.began,
        run.state,
        run.source,
        None if hardware is None else hardware.gpu,
        None if hardware is None else hardware.gpus,
        None if hardware is None else hardware.nodes,
        None if hardware is None else hardware.host,
        _model(run),
        job.get("method"),
        job.get("stack"),
        measured_bytes,
        predicted_bytes,
        step_s,
        foreseen_s,
        total_s,
        _ratio(measured_bytes, predicted_bytes) if compared else None,
        (_ratio(step_s, foreseen_s) or _ratio(total_s, whole_s)) if compared else None,
    )


def row(run: MeasuredRun) -> tuple[Any, ...]:
    made = summary(run)
    return tuple(getattr(made, name) for name, _ in COLUMNS)


def summary_from(values: Sequence[Any]) -> RunSummary:
    return RunSummary(*values)


def model_name(given: str) -> str:
    """One name for a model, however it is spelled."""
    return bundled_name(given) or given


def _model(run: MeasuredRun) -> str | None:
    named = (run.job or {}).get("model")
    if named is not None:
        return model_name(named)
    kind = (run.model_shape or {}).get("model_type")
    return None if kind is None else f"({kind})"


def _memories(run: MeasuredRun) -> tuple[int | None, int | None]:
    measured = [None if run.memory is None else getattr(run.memory, name) for name in MEMORIES]
    predicted = [None if run.predicted is None else getattr(run.predicted, name) for name in MEMORIES]
    for one, other in zip(measured, predicted, strict=True):
        if one is not None and other is not None:
            return one, other
    return next((each for each in measured if each is not None), None), None


def _ratio(measured: float | None, predicted: float | None) -> float | None:
    """None where it says nothing: a figure is missing, or nothing was used."""
    return None if not measured or not predicted else measured / predicted
