"""The smallest changes, least harm first, after which a job fits its card; of a job that fits, what makes it faster."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, cast, overload

from tunecast.advise.ladder import ALLOWED
from tunecast.door.asking import Tick, extra, no_tick
from tunecast.door.filters import Names, split_names
from tunecast.door.predict import known_of
from tunecast.door.read import Command, Source, dotted, read_on_card, script_of
from tunecast.errors import UsageError, nearest_hint
from tunecast.job.job import Job
from tunecast.job.readers import is_job_file
from tunecast.planning.fit.fit import fit_job
from tunecast.planning.fit.hardware import other_hardware
from tunecast.planning.fit.patch import patch_of
from tunecast.planning.fit.solution import Fit
from tunecast.prediction import engines
from tunecast.prediction.prediction import Prediction
from tunecast.records import replace

if TYPE_CHECKING:
    from tunecast.door.trace import ScriptTrace
    from tunecast.planning.fit.script import ScriptFit


@overload
def fit(
    job: Source,
    overrides: Mapping[str, object] | None = None,
    *,
    allow: Names = (),
    calibrated: bool = True,
    tick: Tick = no_tick,
) -> Fit: ...
@overload
def fit(job: Command | ScriptTrace, *, allow: Names = (), traces: int | None = None) -> ScriptFit: ...
def fit(
    job: Source | Command | ScriptTrace,
    overrides: Mapping[str, object] | None = None,
    *,
    allow: Names = (),
    calibrated: bool = True,
    tick: Tick = no_tick,
    traces: int | None = None,
) -> Fit | ScriptFit:
    """First what keeps the mathematics, then what only rounds, and what trains something else only where nothing else
    fits or `allow` names it: method, rank, seq_len and their like. The global batch stays as it is.

    `changes` and `job` of the answer are the chosen ones; where the job is a file, `patch` is what they do to it.

    A list of words is the command of a script, which is traced, and so is its trace: `fit(trace(["train.py"], gpu=…))`.
    Its changes are other values of its own arguments, each verified by at most `traces` further traces.
    """
    script = script_of(job)
    if script is not None:
        from tunecast.door.script_fit import fit_trace

        return fit_trace(script, allow=allow, traces=traces)
    job, given = cast(Source, job), dotted(overrides)
    found = _fit(read_on_card(job, given), allowed(allow), calibrated=calibrated, tick=tick)
    source = fspath(job) if isinstance(job, (str, PathLike)) else None
    if found.chosen is None or source is None or not is_job_file(source):
        return found
    return replace(found, file_patch=patch_of(Path(source), found.chosen.overrides, found.chosen.job, given))


def allowed(given: Names) -> tuple[str, ...]:
    """Groups of changes to what is trained. Raises `UsageError` for others."""
    found = split_names(given)
    for name in found:
        if name not in ALLOWED:
            allow = f"{', '.join(ALLOWED)}{nearest_hint(name, ALLOWED)}"
            raise UsageError(f"--allow: got {name!r}; allowed: {allow}", field="--allow")
    return found


def _fit(job: Job, allow: tuple[str, ...], *, calibrated: bool, tick: Tick) -> Fit:
    def quick(job: Job) -> Prediction:
        tick()
        return engines.predict(job, timed=False, **known_of(job, calibrated=calibrated, timed=False))

    def full(job: Job) -> Prediction:
        tick()
        return engines.predict(job, **known_of(job, calibrated=calibrated))

    found = fit_job(job, quick, full, allow)
    if found.faster:
        return found
    problems: list[str] = []
    elsewhere = extra("other hardware", lambda: other_hardware(found, quick, full, date.today()), problems)
    return replace(found, elsewhere=elsewhere or (), problems=tuple(problems))
