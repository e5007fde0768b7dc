"""A job from what describes it: a file, a model's name, a mapping, another job; with other values where asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from tunecast.errors import UsageError
from tunecast.job.foreign import fields_meant
from tunecast.job.job import Job, sections
from tunecast.job.mapping import check_overrides, job_from_dict, with_overrides
from tunecast.job.readers import read_job
from tunecast.prediction.prediction import Prediction

if TYPE_CHECKING:
    from tunecast.door.trace import ScriptTrace
    from tunecast.job.recipes.recipe import Recipe

Source = Job | Mapping[str, Any] | str | PathLike[str]
"""What a job may be given as."""
Command = list[str] | tuple[str, ...]
"""What a script may be given as: the words that start it."""


def read(source: Source, overrides: Mapping[str, object] | None = None, **fields: object) -> Job:
    """The one job of a file or a model's name, of a mapping as a file has it, or a `Job`; overrides win.

    `overrides` are fields by dotted name (`{"lora.rank": 8}`), `fields` the same by the names that flags have
    (`rank=8`, `gpu="rtx-4090"`), or a section as a mapping (`lora={"rank": 8}`). What trainers call them is understood
    too (`batch_size=4`, `load_in_4bit=True`).

    Raises `UsageError` with all that is wrong, and for a file of several jobs, which `read_jobs` reads.
    """
    changed = dotted(overrides, fields)
    if isinstance(source, Job):
        return with_values(source, changed)
    if isinstance(source, Mapping):
        check_overrides(changed)
        return job_from_dict(with_overrides(source, changed))
    return read_job(fspath(source), changed)


def read_on_card(source: Source, overrides: Mapping[str, object] | None = None, **fields: object) -> Job:
    """The same, for what is asked of its own card: a trainer's file may leave it to the launcher."""
    return require_card(read(source, overrides, **fields))


def require_card(job: Job) -> Job:
    if job.unsaid:
        from tunecast.job.recipes.cards import CARD_FLAGS

        what = "on which card it runs" if "hardware.gpu" in job.unsaid else "on how many cards it runs"
        told = " ".join(CARD_FLAGS[field] for field in job.unsaid)
        raise UsageError(f"the file does not say {what}. To fix: add {told}", field=job.unsaid[0])
    return job


def recipe(path: str | PathLike[str], values: Mapping[str, object] | None = None) -> Recipe:
    """What was understood of the file of a training: the job, where each field comes from, what was assumed, and what
    was not understood. The file is never executed. `values`: keys of its framework that win over the file's."""
    from pathlib import Path

    from tunecast.job.recipes import read_recipe

    return read_recipe(Path(path), values)


def script_of(given: Source | Command | Prediction) -> ScriptTrace | None:
    """The trace of what is a script: one that was traced, or its command."""
    if not isinstance(given, (list, tuple, Prediction)):
        return None
    from tunecast.door.trace import ScriptTrace, trace

    if isinstance(given, ScriptTrace):
        return given
    if isinstance(given, Prediction):
        raise UsageError("got the prediction of a job; allowed: the job itself", field="job")
    return trace(given)


def dotted(overrides: Mapping[str, object] | None, fields: Mapping[str, object] | None = None) -> dict[str, object]:
    """Values by dotted field, however their names are spelled."""
    return fields_meant(_flat({**(overrides or {}), **(fields or {})}))


def with_values(job: Job, overrides: Mapping[str, object]) -> Job:
    """The job with other values; it is known of them that they were given."""
    if not overrides:
        return job
    from tunecast.advise.changes import with_fields

    check_overrides(overrides)
    return with_fields(job, overrides)


def _flat(fields: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    for name, value in fields.items():
        if before + name in sections() and isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value
