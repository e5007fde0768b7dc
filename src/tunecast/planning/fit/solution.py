"""The answer of `tunecast fit` (`tunecast.fit/1`): the job as it is, sets of changes, other hardware."""

from __future__ import annotations

from typing import ClassVar

from tunecast.advise.compare import more_time
from tunecast.advise.ladder import Harm, Overrides
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.planning.fit.patch import Patch
from tunecast.planning.fit.search import Option, Options, harm_of, overrides_of
from tunecast.planning.price import Rent
from tunecast.prediction.outside.needs import machine_ram_bytes
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.verdict import Room
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Alias, Result

FIGURES = (
    *("fits", "fits_surely", "fits_perhaps", "needs_bytes", "range_bytes", "capacity_bytes", "step_s"),
    *("tokens_per_s", "machine_ram_bytes", "prediction"),
)
"""What is published of every job that was predicted."""


@dataclass(frozen=True)
class FitFigures(Result):
    """A prediction and what of it is compared: with the room there is, and with what changes make of it."""

    KEYS: ClassVar[tuple[str, ...]] = FIGURES

    prediction: Prediction
    room: Room

    fits = Alias[bool]("room.fits")
    fits_surely = Alias[bool]("room.surely")
    """At the high end of the 80 % range too."""
    fits_perhaps = Alias[bool]("room.perhaps")
    needs_bytes = Alias[int]("room.needs_bytes")
    """The smallest capacity it completes with."""

    @property
    def range_bytes(self) -> tuple[int, int]:
        return self.room.low_bytes, self.room.high_bytes

    capacity_bytes = Alias[int]("room.capacity_bytes")
    tokens_per_s = Alias[float | None]("prediction.time.tokens_per_s")
    step_s = Alias[float | None]("prediction.time.step_s")

    @property
    def machine_ram_bytes(self) -> int | None:
        """Of its host, for all ranks of a machine; None where it is not known."""
        return None


@dataclass(frozen=True)
class FitState(FitFigures):
    """A job as predicted."""

    job: Job
    model: ModelConfig

    @property
    def machine_ram_bytes(self) -> int | None:
        return machine_ram_bytes(self.job, self.model)

    def more_time_than(self, other: FitState) -> float | None:
        """0.27: it takes 27 % more time for the same tokens."""
        return more_time(other.prediction, self.prediction)


def state_of(done: Prediction) -> FitState:
    return FitState(*_figures(done))


def least_room(done: Prediction) -> Room:
    """What is said of the least capacity is always the least capacity."""
    return done.on_card.room._replace(needs_bytes=done.smallest_capacity_bytes)


def _figures(done: Prediction) -> tuple[Prediction, Room, Job, ModelConfig]:
    return done, least_room(done), done.job, done.model


@dataclass(frozen=True)
class FitChange(Result):
    """One change of a set, after those before it."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("set", "harm", "frees_bytes", "more_time_fraction", "unpriced", "note", "quality"),
    )

    option: Option
    frees_bytes: int | None
    """None: it makes a job only together with those after it."""
    more_time_fraction: float | None
    job: Job
    """With the whole set."""

    set = Alias[Overrides]("option.overrides")
    """Fields by dotted name."""
    harm = Alias[Harm]("option.rung.harm")
    unpriced = Alias[str | None]("option.rung.unpriced")
    """What is not known of its price."""
    note = Alias[str | None]("option.rung.note")

    @property
    def quality(self) -> tuple[str, ...]:
        """What was published about it, of the job with the whole set: 16-bit weights under adapters are not updated."""
        return tuple(self.option.rung.quality(self.job))


@dataclass(frozen=True)
class Solution(FitState):
    """A set of changes, predicted."""

    KEYS: ClassVar[tuple[str, ...]] = ("harm", "changes", "frees_bytes", "more_time_fraction", "job", *FIGURES)

    changes: tuple[FitChange, ...]
    frees_bytes: int
    more_time_fraction: float | None

    @property
    def options(self) -> Options:
        return tuple(change.option for change in self.changes)

    @property
    def overrides(self) -> dict[str, object]:
        return overrides_of(self.options)

    @property
    def harm(self) -> Harm:
        return harm_of(self.options)

    @property
    def unpriced(self) -> list[str]:
        return list(dict.fromkeys(each.unpriced for each in self.changes if each.unpriced is not None))

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(each.note for each in self.changes if each.note is not None))

    @property
    def quality(self) -> list[str]:
        return list(dict.fromkeys(told for each in self.changes for told in each.quality))


def solution_of(done: Prediction, begun: FitState, effects: list[tuple[Option, int | None, float | None]]) -> Solution:
    """`effects`: of each option what it frees and how much more time it takes, after those before it."""
    return Solution(
        *_figures(done),
        tuple(FitChange(option, frees, more, done.job) for option, frees, more in effects),
        begun.needs_bytes - done.smallest_capacity_bytes,
        more_time(begun.prediction, done),
    )


@dataclass(frozen=True)
class FrugalJob(Result):
    """A job that does not fit, with everything up to some harm that frees memory."""

    KEYS: ClassVar[tuple[str, ...]] = ("set", "harm", "needs_bytes", "gpu")

    set: Overrides
    harm: Harm
    needs_bytes: int
    least_card: Gpu | None
    """None: no card is large enough."""

    gpu = Alias[str | None]("least_card.name")


class LargerCards(NamedTuple):
    """What would do, where nothing here does."""

    least_cards: tuple[FrugalJob, ...]
    """The job as it is, with what keeps its training, with other training."""


@dataclass(frozen=True)
class OtherHardware(FitState):
    """Other hardware on which the job fits (`hardware.py`)."""

    KEYS: ClassVar[tuple[str, ...]] = ("set", *FIGURES, "cost")

    set: Overrides
    cost: Rent | None
    """None where nobody at hand rents it out."""


def other_hardware_of(done: Prediction, overrides: Overrides, rent: Rent | None) -> OtherHardware:
    return OtherHardware(*_figures(done), overrides, rent)


@dataclass(frozen=True)
class Fit(Result):
    schema: ClassVar[str] = "tunecast.fit/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "id", "fits", "question", "before", "forced", "chosen", "others", "quicker", "offered", "would_do"),
        *("elsewhere", "patch", "predictions"),
    )

    before: FitState
    chosen: Solution | None
    others: tuple[Solution, ...]
    """No more harm, no larger, and slower."""
    offered: tuple[Solution, ...]
    """Other training: by itself, each. Never chosen where something else does."""
    would_do: LargerCards | None
    predictions: int
    forced: bool = False
    """Other training was chosen because nothing else fits, not because it was allowed."""
    quicker: tuple[Solution, ...] = ()
    """Larger sets that keep the training and take less time than the chosen one: least harm first."""
    elsewhere: tuple[OtherHardware, ...] = ()
    problems: tuple[str, ...] = ()
    """What broke on the way and is left out."""
    file_patch: Patch | None = None
    """What the chosen changes do to the job's file, where it has one that can be changed in its place."""

    id = Alias[str | int | None]("before.job.id")

    @property
    def fits(self) -> bool:
        """As it is, or with the chosen changes."""
        return self.before.fits or self.chosen is not None

    faster = Alias[bool]("before.fits_surely")
    """Whether the question was what takes less time."""

    @property
    def question(self) -> str:
        return "faster" if self.faster else "fits surely" if self.before.fits else "fits"

    patch = Alias[str | None]("file_patch.diff")
    """A unified diff against the job's file."""

    @property
    def changes(self) -> tuple[FitChange, ...]:
        """The chosen ones; none where nothing is to change, or nothing helps."""
        return () if self.chosen is None else self.chosen.changes

    @property
    def job(self) -> Job:
        """With the chosen changes."""
        return (self.chosen or self.before).job
