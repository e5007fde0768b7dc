"""Changes to a job that need less memory, each tried: what it would save, and whether the job fits then."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tunecast.advise.ladder import LESS_MEMORY, Overrides
from tunecast.errors import NotResolved, UsageError
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict, with_overrides
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.verdict import Verdict
from tunecast.records import dataclass, replace
from tunecast.result import Result

Predict = Callable[[Job], Prediction]
WORST_LAST: tuple[Verdict, ...] = ("fits", "may not fit", "does not fit")


@dataclass(frozen=True)
class Change(Result):
    """Fields set to other values, and what came of it."""

    KEYS: ClassVar[tuple[str, ...]] = ("set", "saves_bytes", "fits")

    overrides: Overrides
    """By dotted name."""
    job: Job
    saves_bytes: int
    """Of the least capacity the job completes with; negative where it needs more."""
    verdict: Verdict
    group: str = ""
    """Changes of one group are rivals: a job takes one of them."""

    @property
    def set(self) -> Overrides:
        return self.overrides

    @property
    def fits(self) -> bool:
        """By the prediction itself."""
        return self.verdict != "does not fit"


def with_fields(job: Job, overrides: Overrides) -> Job:
    """The job with other values; what only another method has goes with it. Raises `UsageError`."""
    fields = job.to_dict()
    if overrides.get("method") == "qlora" and job.method != "qlora":
        del fields["quantization"]  # it says that nothing is quantised
    changed = job_from_dict(with_overrides(fields, overrides))
    unsaid = tuple(field for field in job.unsaid if field not in overrides)
    return replace(changed, given=job.given | set(overrides), unsaid=unsaid, not_modelled=job.not_modelled)


def least_capacity(of: Prediction) -> int:
    """What a job needs, as every command says it."""
    return of.on_card.smallest_capacity_bytes


def changes_tried(job: Job, before: Prediction, predict: Predict) -> list[Change]:
    """Every change that applies to this job and helps, those that make it fit first, then the largest saving.

    What cannot be predicted (an architecture a fused kernel does not know) is left out.
    """
    need = least_capacity(before)
    found = []
    for rung in LESS_MEMORY:
        overrides = rung.mildest(job)
        if overrides is None:
            continue
        try:
            other = with_fields(job, overrides)
            after = predict(other)
            saves = need - least_capacity(after)
        except (UsageError, NotResolved):
            continue
        verdict = after.on_card.verdict
        if saves > 0 or WORST_LAST.index(verdict) < WORST_LAST.index(before.on_card.verdict):
            found.append(Change(overrides, other, saves, verdict, rung.group))
    return sorted(found, key=lambda change: (WORST_LAST.index(change.verdict), -change.saves_bytes))
