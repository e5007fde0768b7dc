"""What differs between two jobs, and what each difference costs.

From one job to the other, field by field in the order of the contract: each step is predicted, and the difference to
the step before is what that field costs there, in memory and in time. The steps sum to the whole difference exactly
(times multiply). What a field costs depends on the fields changed before it (adapters make an optimizer's choice
cheap), so another order divides the same sum otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tunecast.errors import UsageError
from tunecast.hardware.catalog import gpu
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_flat
from tunecast.prediction.prediction import Prediction
from tunecast.records import NamedTuple, dataclass, replace
from tunecast.result import Result

Predict = Callable[[Job], Prediction]
NOT_COMPARED = frozenset({"id"})
MEASURES = ("allocated_bytes", "reserved_bytes", "device_bytes", "smallest_capacity_bytes")


class Difference(NamedTuple):
    """A field by its dotted name, as it was and as it becomes."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class FieldStep(Result):
    """Fields that change together, because the job without one of them would be refused; mostly it is one."""

    fields: tuple[Difference, ...]
    costs_bytes: Mapping[str, int]
    """By `MEASURES`: what each is more than at the step before."""
    breakdown_bytes: Mapping[str, int]
    """The same of every part of the device's memory; sums to `costs_bytes["device_bytes"]`."""
    more_time_fraction: float | None
    """0.27: 27 % more time for the same tokens than at the step before; None where a time is not known."""
    more_s: float | None
    """Of the whole run; None where the job does not say how long it is."""
    fits: bool
    """After it."""
    fits_surely: bool
    """At the high end of the range too."""


def differences(before: Job, after: Job) -> list[Difference]:
    """In the order of the contract. Two names of one card are no difference."""
    old, new = before.flat(), after.flat()
    found = [name for name in old if old[name] != new[name] and name not in NOT_COMPARED]
    if "hardware.gpu" in found and gpu(before.hardware.gpu) == gpu(after.hardware.gpu):
        found.remove("hardware.gpu")
    return [Difference(name, old[name], new[name]) for name in found]


def steps_between(before: Job, after: Job, predict: Predict) -> Iterator[FieldStep]:
    """From one job to the other: the fewest fields at a time, from the first on, that make a job which can be
    predicted. Raises what the prediction of either end raises."""
    job, left = before, differences(before, after)
    while left:
        step, job = next(
            (_step(left, job, other, after, predict), other)
            for count in range(1, len(left) + 1)
            if (other := _changed(job, after, left[:count], predict)) is not None
        )
        yield step
        left = differences(job, after)


def _changed(job: Job, after: Job, changes: list[Difference], predict: Predict) -> Job | None:
    """None where there is no such job, or it cannot be predicted: then the next field changes with these."""
    if changes == differences(job, after):
        return after
    try:
        set_fields = {change.field: change.after for change in changes}
        other = replace(
            job_from_flat({**job.flat(), **set_fields}, job.given | set(set_fields)), not_modelled=job.not_modelled
        )
        predict(other)
    except UsageError:
        return None
    return other


def _step(left: list[Difference], job: Job, other: Job, after: Job, predict: Predict) -> FieldStep:
    """What is settled now: what was set, and what follows from it (qlora quantises to nf4)."""
    open_fields = {difference.field for difference in differences(other, after)}
    old, new = predict(job), predict(other)
    parts = {**old.memory.breakdown_bytes, **new.memory.breakdown_bytes}
    return FieldStep(
        fields=tuple(difference for difference in left if difference.field not in open_fields),
        costs_bytes={name: measure(new, name) - measure(old, name) for name in MEASURES},
        breakdown_bytes={
            part: new.memory.breakdown_bytes.get(part, 0) - old.memory.breakdown_bytes.get(part, 0) for part in parts
        },
        fits=new.fits,
        fits_surely=new.fits_surely,
        more_time_fraction=more_time(old, new),
        more_s=more_s(old, new),
    )


def more_time(before: Prediction, after: Prediction) -> float | None:
    """0.27: the second takes 27 % more time for the same tokens."""
    if before.time is None or after.time is None:
        return None
    old, new = before.time.tokens_per_s, after.time.tokens_per_s
    return None if old is None or new is None else old / new - 1


def more_s(before: Prediction, after: Prediction) -> float | None:
    """Of the whole run."""
    old, new = (None if said.time is None else said.time.total_s for said in (before, after))
    return None if old is None or new is None else new - old


def measure(prediction: Prediction, name: str) -> int:
    """One of `MEASURES`."""
    if name == "smallest_capacity_bytes":
        return prediction.smallest_capacity_bytes
    nbytes: int = getattr(prediction.memory, name)
    return nbytes
