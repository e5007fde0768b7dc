"""What a launch begins from: a job, a plan or its JSON, or the file somebody trains with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunecast.door.read import Source, read_on_card
from tunecast.errors import DoesNotFit, UsageError
from tunecast.job.job import Job
from tunecast.job.mapping import check_overrides, job_from_dict, with_overrides
from tunecast.job.readers.bounds import MOST_FILE_BYTES, bounded_text
from tunecast.job.readers.json import parsed
from tunecast.job.recipes import find_recipe
from tunecast.job.stacks import SFT_STACK
from tunecast.launching.offers import PlannedMachines, planned_machines
from tunecast.launching.programs import as_framework
from tunecast.market.offer import SPOT
from tunecast.planning.choice import Choice, Plan
from tunecast.records import replace

PLAN_SCHEMA = Plan.schema
SAVES = "run.save_steps"

OneSource = Source | Plan | Choice
"""What one job may be launched from."""


def job_of(source: Source | Plan | Choice, overrides: Mapping[str, object] | None) -> tuple[Job, tuple[str, ...]]:
    """The job that is to be launched, and what was decided of it that nobody said."""
    planned = _planned(source)
    job = read_on_card(planned, overrides)
    notes = saves_note(source, job)
    if not job.is_given("stack") and job.stack != SFT_STACK:
        job = replace(job, stack=SFT_STACK)
        notes += (f"the job names no stack: {SFT_STACK} trains it. Plans and predictions of it: --stack {SFT_STACK}",)
    job, decided = as_framework(job)
    return job, (*notes, *decided)


def _planned(source: Source | Plan | Choice) -> Source:
    if isinstance(source, Plan):
        if source.best is None:
            raise DoesNotFit(f"the plan has no pick: {source.failure.message if source.failure else 'nothing fits'}")
        source = source.best
    if isinstance(source, Choice):
        if source.job is None:
            raise UsageError("got the plan of a script; allowed: that of a job. To fix: launch the script's own file")
        return source.job
    if isinstance(source, (str, os.PathLike)) and (content := _plan_in(Path(source))):
        return _job_of_plan(content, str(source))
    return source


def saves_note(source: Source | Plan | Choice, job: Job) -> tuple[str, ...]:
    """Of a spot machine that a plan picked, and whose checkpoints it chose (planning/bill.py, `Biller.save_steps`)."""
    best = source.best if isinstance(source, Plan) else source
    kind, step_s = "", 0.0
    changes: Mapping[str, object] = {}
    if isinstance(best, Choice):
        kind, changes, step_s = best.fleet.offer.kind, best.changes, best.step_s
    elif isinstance(source, (str, os.PathLike)) and (content := _plan_in(Path(source))):
        pick = content["picks"][content["best"]]  # as `_job_of_plan` found it
        offer, step_s = pick.get("offer"), pick.get("step_s", 0.0)
        kind, changes = offer.get("kind", "") if isinstance(offer, Mapping) else "", pick["changes"]
    if kind != SPOT or changes.get(SAVES) != job.run.save_steps or not isinstance(step_s, (int, float)):
        return ()
    steps = job.run.save_steps
    every = f"a spot machine: a checkpoint every {steps:,} steps ({step_s * steps / 60:.0f} min)"
    return (f"{every}, sqrt(2 x seconds of a save / interruptions a second) apart (Young, CACM 17, 1974)",)


def machines_in(source: Source | Plan | Choice) -> PlannedMachines:
    """What a plan says of machines; nothing where there is none."""
    if isinstance(source, Plan):
        return planned_machines(source.to_dict(), "the plan")
    if isinstance(source, Choice):
        return planned_machines({"best": "only", "picks": {"only": source.to_dict()}}, "the choice")
    content = _plan_in(Path(source)) if isinstance(source, (str, os.PathLike)) else None
    return PlannedMachines() if content is None else planned_machines(content, str(source))


def _plan_in(path: Path) -> Mapping[str, Any] | None:
    """What a file of `tunecast plan --json` holds; None where it is none."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return None
    content = parsed(bounded_text(path, MOST_FILE_BYTES), str(path))
    return content if isinstance(content, Mapping) and content.get("schema") == PLAN_SCHEMA else None


def _job_of_plan(content: Mapping[str, Any], file: str) -> Job:
    """As `tunecast plan --json` wrote it: the user's job with the settings of the pick it begins with."""
    job, best = content.get("job"), content.get("best")
    if not isinstance(job, Mapping):
        raise UsageError(f"{file}: a plan without its job. To fix: plan again, of a job", field="job")
    picks = content.get("picks")
    pick = picks.get(best) if isinstance(picks, Mapping) and isinstance(best, str) else None
    changes = pick.get("changes") if isinstance(pick, Mapping) else None
    if not isinstance(changes, Mapping):
        raise DoesNotFit(f"{file}: the plan has no pick")
    check_overrides(changes)
    return job_from_dict(with_overrides(job, changes))


def own_file(source: Source | Plan | Choice) -> Path | None:
    """The file somebody trains with, where that is what was given: it is started as it is."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = Path(source)
    if path.name == "config.json" or not path.is_file() or _plan_in(path):
        return None
    return path if find_recipe(path) is not None else None
