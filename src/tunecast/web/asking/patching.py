"""A file that was dropped on the page, with what was changed there written into it: its own words, order and comments.

    the file ──► the job it says ──► which of its fields the page changed ──► in the file, or beside it ──► read back

As `tunecast fit --write` changes a file (planning/fit/patch.py). What the file's framework has no key for (the card,
how much data there is), or cannot say by changing a value in its place, is told beside the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunecast.door.read import read
from tunecast.errors import TunecastError, UsageError
from tunecast.job.job import Job
from tunecast.job.recipes import ENDINGS, find_recipe, words_for
from tunecast.job.registry import bundled_models, bundled_spelling
from tunecast.planning.fit.patch import Patch, patch_of
from tunecast.records import replace
from tunecast.report.run.wording import as_flags, in_yaml

SCHEMA = "tunecast.patch/1"
WHOSE = "stack"
"""Whose file it is, which no value in it changes."""


def patch_file(path: Path, wanted: Job, *, pasted: bool) -> dict[str, Any]:
    """`tunecast.patch/1`. `pasted`: the job's model came as a config.json. Raises `UsageError` where nothing of what
    was changed can be written into this file."""
    recipe = find_recipe(path) if path.suffix.lower() in ENDINGS else None
    file_job = read(path)
    wanted = replace(wanted, id=file_job.id, model=_model_name(wanted, file_job, recipe is not None, pasted))
    before = file_job.flat()
    changed = {field: value for field, value in wanted.flat().items() if value != before[field]}
    has_words = {
        field: value
        for field, value in changed.items()
        if recipe is None or (field != WHOSE and words_for(recipe, field, value) is not None)
    }
    written, patch = _most_written(path, wanted, changed, has_words)
    if has_words and not written:
        told = f"{path.name} cannot be changed in its place. To fix: set there {in_yaml(has_words)}"
        raise UsageError.at("text", told)
    beside = {field: value for field, value in changed.items() if field not in written}
    return {
        "schema": SCHEMA,
        "name": path.name,
        "text": patch.after,
        "diff": patch.diff,
        "changes": _listed(written),
        "beside": _listed(beside),
        "flags": as_flags(beside),
    }


def _most_written(
    path: Path, wanted: Job, changed: dict[str, Any], has_words: dict[str, Any]
) -> tuple[dict[str, Any], Patch]:
    """All that has words together; where that is read back as another job, one after another what is not."""

    def attempt(written: dict[str, Any]) -> Patch | None:
        try:
            others = {name: value for name, value in changed.items() if name not in written}
            return patch_of(path, written, wanted, others)
        except TunecastError:  # it names a model that is not at hand, and is not word for word the job that was wanted
            return None

    whole = attempt(has_words)
    if whole is not None:
        return has_words, whole
    written: dict[str, Any] = {}
    patch = attempt(written)
    for field, value in has_words.items():
        further = attempt({**written, field: value})
        if further is not None:
            written, patch = {**written, field: value}, further
    if patch is None:
        told = f"{path.name} with these values is another job than this one. To fix: set there {in_yaml(has_words)}"
        raise UsageError.at("text", told)
    return written, patch


def _model_name(wanted: Job, file_job: Job, is_trainers: bool, pasted: bool) -> str:
    """As a trainer finds it: by its Hub id."""
    if pasted:
        return file_job.model
    mine, theirs = (bundled_spelling(job.model) for job in (wanted, file_job))
    if mine is not None and theirs is not None and mine.name == theirs.name:
        return file_job.model
    return str(bundled_models()[mine.name]["hub"]) if is_trainers and mine is not None else wanted.model


def _listed(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
