"""How far a predicted step may be off: an 80 % range, from what measured steps show.

`time_table.py` is written by `benchmarks/time_ranges.py` from the errors of timed steps. A range is that of the most
alike steps of which enough were timed (`Kind.alike`): whose code it is, on which card, on one or several of them, in
which precision, whether the card waits for its host, and, of several cards, whether a step is short, since a straggler
or a late batch takes a larger share of it.

    of a card's own     steps of this family of stacks on this card: how far they lie from what is predicted today
    of any card         the same family's steps on all cards, each predicted with the card left out of every constant
                        that was read off published steps: what to expect of a card that family was not timed on
    unseen              all steps, predicted without their card, every card counting the same: the least of a step where
                        something it consists of was never timed (`evidence.py`): the card, the stack, the method, the
                        precision or the kernels of layers without attention
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from tunecast.job.kernels import INSTALLED
from tunecast.job.names import LANGUAGE
from tunecast.prediction.evidence import LOW_PRECISION, ONE, SEVERAL, SIXTEEN_BITS, evidence_for, family_of
from tunecast.prediction.time.ranges_table import BANDS
from tunecast.records import NamedTuple, replace

if TYPE_CHECKING:
    from tunecast.job.job import Job
    from tunecast.prediction.time.runtime import StepTime

Key = TypeVar("Key")

CARD, HOST = "card", "host"
SHORT, LONG = "short", "long"
UNSEEN = "unseen"
WAITS = 0.1
"""Of a step, what the card waits at least for its host in a step that is the host's."""
SHORT_S = 1.0
"""Of an optimizer step of several cards: below it what comes once a step counts (a straggler, the batch, the last
reduction), which published steps show as half of them being more than 12 % longer than predicted."""


class TimeBand(NamedTuple):
    below: float
    """How far below the prediction the range begins, as a share of it."""
    above: float
    runs: int = 0
    models: int = 0
    covered: float | None = None
    """The share of runs inside a range made of the other models' runs; None where those are too few."""


GENERATES, OTHER_TASK, WITH_IMAGES = TimeBand(0.31, 0.11, 14), TimeBand(0.09, 0.26, 25), TimeBand(0.0, 0.62, 9)
"""The least of steps that generate by transformers, of other tasks beyond the language model's own loss, and of steps
with images: where the middle 80 % of those lie that were drawn and timed on two machines with an H200, which launched
at unlike speeds (benchmarks/tasks.py, results/tasks.json and tasks2.json). Images were cut to patches by the training
process, which is not predicted."""


class StepKind(NamedTuple):
    """What a step's range depends on."""

    card: str
    family: str
    precision: str
    cards: str
    waits: str
    length: str

    def alike(self) -> tuple[str, ...]:
        """Names of groups of steps, the most alike first."""
        if self.cards == ONE:
            return (
                f"one {self.card}, {self.family}, {self.waits}",
                f"one card, {self.family}, {self.waits}",
                f"one card, {self.waits}",
            )
        if self.waits == HOST:
            return (f"several, {HOST}",)
        return (
            f"several {self.card}, {self.family}, {self.precision}, {self.length}",
            f"several {self.card}, {self.family}, {self.precision}",
            f"several, {self.family}, {self.precision}, {self.length}",
            f"several, {self.family}, {self.precision}",
            f"several, {self.precision}, {self.length}",
            f"several, {self.precision}",
        )


def kind_of(step: StepTime, gpu_name: str, stack: str, *, several: bool, low_precision: bool = False) -> StepKind:
    return StepKind(
        gpu_name,
        family_of(stack),
        LOW_PRECISION if low_precision else SIXTEEN_BITS,
        SEVERAL if several else ONE,
        HOST if waits_for_host(step) else CARD,
        SHORT if step.step_s < SHORT_S else LONG,
    )


def host_share(step: StepTime) -> float:
    """Of the step, what the card waits for the host."""
    return step.breakdown_s.get("launch", 0.0) / step.step_s if step.step_s else 0.0


def waits_for_host(step: StepTime) -> bool:
    return host_share(step) > WAITS


@lru_cache(maxsize=1000)
def band_of(kind: StepKind, timed: bool = True) -> TimeBand:
    """Of the most alike steps; where it was not `timed` what the step consists of, never narrower than `UNSEEN`."""
    unseen = TimeBand(*BANDS[UNSEEN])
    found = next((TimeBand(*BANDS[name]) for name in kind.alike() if name in BANDS), unseen)
    if timed:
        return found
    return found._replace(below=max(found.below, unseen.below), above=max(found.above, unseen.above))


def has_own_range(gpu_name: str) -> bool:
    """Whether enough steps on this card were timed for ranges of its own."""
    return any(name.startswith((f"one {gpu_name},", f"several {gpu_name},")) for name in BANDS)


def ranged(times: Mapping[Key, StepTime], job: Job, gpu_name: str, several: bool) -> Mapping[Key, StepTime]:
    """Steps of a job with the ranges of their kind."""
    low_precision = job.matmul_dtype is not None
    evidence = evidence_for(gpu_name, job.stack, job.method, several, low_precision=low_precision)
    timed = evidence.validated and set(job.kernels).isdisjoint(INSTALLED)
    made = {}
    for key, step in times.items():
        kind = kind_of(step, gpu_name, job.stack, several=several, low_precision=low_precision)
        made[key] = within(step, at_least(band_of(kind, timed), job, step))
    return made


def at_least(band: TimeBand, job: Job, step: StepTime) -> TimeBand:
    """No narrower than steps of such a task were off."""
    least = GENERATES if step.task_s else OTHER_TASK
    floors = [least] if job.task not in LANGUAGE else []
    floors += [WITH_IMAGES] if job.vision.images or job.vision.frames else []
    below, above = (max(getattr(each, side) for each in (band, *floors)) for side in ("below", "above"))
    return band._replace(below=below, above=above)


def within(step: StepTime, band: TimeBand) -> StepTime:
    return replace(step, low_s=step.step_s * (1 - band.below), high_s=step.step_s * (1 + band.above))
