"""One training file in two states, in a process of its own: what a file from anyone takes ends there.

Reads a request from stdin and writes a `FileChange` to stdout, both as JSON; null where the file trains nothing.
"""

from __future__ import annotations

import filecmp
import json
import resource
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TypeVar

from tunecast.advise.compare import Difference, FieldStep, differences, more_time, steps_between
from tunecast.door.asking import Predictions, extra
from tunecast.door.plan import Planner, PlanOptions
from tunecast.door.read import read, require_card
from tunecast.errors import DoesNotFit, NotResolved, OverBudget, TunecastError, UsageError, internal_error
from tunecast.job import recipes
from tunecast.job.comment import FileComment, comment_of
from tunecast.job.job import Job
from tunecast.job.readers.bounds import MOST_FILE_BYTES, bounded_text
from tunecast.job.recipes.document import read_document
from tunecast.job.recipes.recipe import Recipe
from tunecast.planning.file_changes import NAMES_ANOTHER, FieldChange, FileChange, FileState, PlannedRun
from tunecast.planning.price import rent_of
from tunecast.records import NamedTuple
from tunecast.report.plan.price import offer_words
from tunecast.report.run.job import title_of
from tunecast.result import json_value
from tunecast.units import GIB

MOST_CPU_S, MOST_PLANNING_CPU_S = 120, 480
"""Of one file, as it was and as it is. A QLoRA of 8B on the lengths of Alpaca took 10 s; with two plans it
was not done after 57."""
MOST_MEMORY_BYTES = 8 * GIB
T = TypeVar("T")


class DiffRequest(NamedTuple):
    folder: str
    """Where both states are."""
    old: str | None
    new: str | None
    """Paths inside of them; None where the file is not there."""
    kind: str
    gpu: str | None
    gpus: int | None
    plan: bool
    within: str | float | None
    eu: bool
    quick: bool

    def path(self, name: str | None, state: str) -> Path | None:
        path = None if name is None else Path(self.folder, state, name)
        return path if path is not None and path.is_file() else None


class Version(NamedTuple):
    """A training file in one state."""

    path: Path
    recipe: Recipe
    comment: FileComment


def main() -> None:
    request = DiffRequest(**json.load(sys.stdin))
    most_s = MOST_PLANNING_CPU_S if request.plan else MOST_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    found = file_change(request)
    print(_without_folder(request, json.dumps(None if found is None else found.to_dict())))


def file_change(request: DiffRequest) -> FileChange | None:
    """None where neither state is a training, and where a file that names a changed one says the same as before."""
    old, old_problem = _tried(request, lambda: _version(request.path(request.old, "before")))
    new, problem = _tried(request, lambda: _version(request.path(request.new, "after")))
    if old is None and new is None and not (_looks_like_one(request) and problem):
        return None
    before: FileState | None = None
    predictions = Predictions(timed=not request.quick)
    before_job, old_problem = _tried(request, lambda: _job(old, request), old_problem)
    after_job, problem = _tried(request, lambda: _job(new, request), problem)
    if not request.quick:
        before, old_problem = _tried(request, lambda: _state(before_job, old, request, predictions), old_problem)
    after, problem = _tried(request, lambda: _state(after_job, new, request, predictions), problem)
    if problem is None and new is None and request.path(request.new, "after") is not None:
        problem = "describes no training any more"
    changes: tuple[FieldChange, ...] = ()
    more = None
    if before_job is not None and after_job is not None:
        both = before is not None and after is not None
        changes = tuple(_changes(request, before_job, after_job, predictions if both else None, old, new))
        if both:
            more = more_time(predictions.predict(before_job), predictions.predict(after_job))
    if request.kind == NAMES_ANOTHER and not changes and problem == old_problem:
        return None
    name = request.new or request.old or ""
    return FileChange(name, request.old or name, request.kind, before, after, changes, more, problem, old_problem)


def _tried(request: DiffRequest, ask: Callable[[], T], before: str | None = None) -> tuple[T | None, str | None]:
    """What is found, and why it is not; with what stood in the way `before`, nothing is asked."""
    if before is not None:
        return None, before
    try:
        return ask(), None
    except TunecastError as error:
        told = error.message
    except (MemoryError, RecursionError):
        told = "needs more memory to be read than any training file"
    except Exception as error:
        told = internal_error(error)
    return None, told


def _version(path: Path | None) -> Version | None:
    """None where it is no training."""
    if path is None:
        return None
    try:
        recipe = recipes.find_recipe(path)
    except UsageError as error:
        if error.field == "task":  # a trainer's file that trains nothing
            return None
        raise
    if recipe is None:
        document = None if path.suffix.lower() in recipes.SCRIPTS else read_document(path)
        recipe = recipes.recipe_of_job(document) if document is not None and recipes.looks_like_job(document) else None
    if recipe is None or (recipe.framework in recipes.PARTS and "model" not in recipe.job):
        return None
    return Version(path, recipe, comment_of(bounded_text(path, MOST_FILE_BYTES)))


def _looks_like_one(request: DiffRequest) -> bool:
    """Whether a file that cannot be read was meant to be a training."""
    path = request.path(request.new, "after")
    try:
        text = "" if path is None else bounded_text(path, MOST_FILE_BYTES)
    except TunecastError:
        return False
    return any(f"{key}:" in text or f'"{key}"' in text for key in TELLING)


TELLING = ("base_model", "model_name_or_path", "per_device_train_batch_size", "micro_batch_size", "micro_batch")
"""Keys that hardly anything but a training has: Axolotl's, LLaMA-Factory's and TRL's, and ours."""


def _job(version: Version | None, request: DiffRequest) -> Job | None:
    """Its own comment wins over the flags, which are for all files; flags over the file's keys, as everywhere."""
    if version is None:
        return None
    if version.comment.problems:
        raise UsageError(f"{version.path}: # tunecast: {'; '.join(map(str, version.comment.problems))}")
    flags = {"hardware.gpu": request.gpu, "hardware.gpus": request.gpus}
    given = {name: value for name, value in flags.items() if value is not None}
    job = read(version.path, {**given, **version.comment.overrides})
    try:
        return require_card(job)
    except UsageError as error:
        raise UsageError(f"{error.message}, or a comment in it: # tunecast: gpu=rtx-4090", field=error.field) from None


def _state(
    job: Job | None, version: Version | None, request: DiffRequest, predictions: Predictions
) -> FileState | None:
    if job is None or version is None:
        return None
    found = predictions.predict(job)
    time = None if request.quick else found.time
    rent = None if request.quick else extra("the cost", lambda: rent_of(found, date.today()), [])
    return FileState(
        title=title_of(found.job),
        framework=version.recipe.framework,
        verdict=found.on_card.room.verdict,
        fits=found.fits,
        fits_surely=found.fits_surely,
        needs_bytes=found.smallest_capacity_bytes,
        capacity_bytes=found.capacity_bytes,
        exactness=found.exactness,
        not_understood=len(version.recipe.not_understood),
        step_s=None if time is None else time.step_s,
        total_s=None if time is None else time.total_s,
        total_usd=None if rent is None else rent.total_usd,
        usd_per_million_tokens=None if rent is None else rent.usd_per_million_tokens,
        offer="" if rent is None else offer_words(rent),
        plan=_plan(job, version, request) if request.plan else None,
    )


def _plan(job: Job, version: Version, request: DiffRequest) -> PlannedRun | None:
    within = version.comment.within or request.within
    options: PlanOptions = {"eu": version.comment.eu or request.eu}
    if within is not None:
        options["within"] = within
    if version.comment.budget_usd is not None:
        options["max_usd"] = version.comment.budget_usd
    try:
        best = Planner(job, options).plan().best
    except (DoesNotFit, OverBudget, NotResolved):
        return None
    return None if best is None else PlannedRun(best.hardware, best.offer.provider, best.total_usd, best.total_s)


def _changes(
    request: DiffRequest,
    before: Job,
    after: Job,
    predictions: Predictions | None,
    old: Version | None,
    new: Version | None,
) -> list[FieldChange]:
    steps: list[FieldStep] = []
    if predictions is not None:
        try:
            steps = list(steps_between(before, after, predictions.predict))
        except TunecastError:  # a job between the two that nothing can be said of
            steps = []
    told = [(each, step if each is step.fields[0] else None) for step in steps for each in step.fields]
    told = told or [(each, None) for each in differences(before, after)]
    return [_change(each, old, new, step) for each, step in told if not _is_same_file(request, each)]


def _is_same_file(request: DiffRequest, each: Difference) -> bool:
    """Whether a path names in both states the same contents: a model's folder, or training data."""
    names = [value for value in (each.before, each.after) if isinstance(value, str)]
    if len({_without_folder(request, name) for name in names}) != 1 or len(names) != 2:
        return False
    old, new = (path / "config.json" if path.is_dir() else path for path in map(Path, names))
    return old.is_file() and new.is_file() and filecmp.cmp(old, new, shallow=False)


def _change(each: Difference, old: Version | None, new: Version | None, step: FieldStep | None) -> FieldChange:
    here, there = (None if version is None else version.recipe.places.get(each.field) for version in (new, old))
    place = here or there
    said = place is not None and bool(place.line)
    return FieldChange(
        each.field,
        place.key if place is not None and said else "",
        place.file if place is not None and said else "",
        0 if here is None else here.line,
        json_value(each.before),
        json_value(each.after),
        None if step is None else step.costs_bytes["smallest_capacity_bytes"],
        None if step is None else step.more_time_fraction,
    )


def _without_folder(request: DiffRequest, told: str) -> str:
    """Paths as the repository has them."""
    for state in ("before", "after"):
        told = told.replace(f"{request.folder}/{state}/", "")
    return told


if __name__ == "__main__":
    main()
