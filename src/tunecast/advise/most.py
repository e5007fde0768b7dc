"""The answer of `tunecast largest` (`tunecast.largest/1`): the most that fits a card, by method."""

from __future__ import annotations

from typing import ClassVar

from tunecast.prediction.evidence import Evidence
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Alias, Result


class SizedModel(NamedTuple):
    """A model that fits, and what it needs."""

    model: str
    parameters: int
    needs_bytes: int
    """The smallest capacity it completes with."""
    range_bytes: tuple[int, int]
    """80 %, of what PyTorch holds."""


class UnansweredModel(NamedTuple):
    model: str
    message: str


@dataclass(frozen=True)
class LargestModel(Result):
    """The largest bundled model of a method."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("method", "model", "parameters", "needs_bytes", "range_bytes", "beyond", "surely", "unanswered"),
    )

    method: str
    surely: SizedModel | None
    """At the high end of its range too."""
    likely: SizedModel | None
    """By the prediction itself."""
    beyond: str | None
    """The next larger one that was predicted not to fit; None: the larger ones exceed the card by themselves."""
    unanswered: tuple[UnansweredModel, ...] = ()

    model = Alias[str | None]("likely.model")
    parameters = Alias[int | None]("likely.parameters")
    needs_bytes = Alias[int | None]("likely.needs_bytes")
    range_bytes = Alias[tuple[int, int] | None]("likely.range_bytes")


@dataclass(frozen=True)
class MostFigure(Result):
    """So many tokens or rows, and what they need."""

    most: int
    needs_bytes: int
    """The smallest capacity it completes with."""
    range_bytes: tuple[int, int]
    """80 %, of what PyTorch holds."""


class SequenceFigure(MostFigure):
    KEYS = ("seq_len", "needs_bytes", "range_bytes")

    seq_len = Alias[int]("most")


class BatchFigure(MostFigure):
    KEYS = ("micro_batch", "needs_bytes", "range_bytes")

    micro_batch = Alias[int]("most")


@dataclass(frozen=True)
class Most(Result):
    """The most tokens per row, or rows at a time."""

    method: str
    at: int
    """The other of the two, which was held."""
    surely: MostFigure | None
    """At the high end of its range too."""
    likely: MostFigure | None
    """By the prediction itself."""
    beyond: int | None
    """Predicted not to fit; None where `likely` is as far as the search goes."""
    error: str | None = None
    """Why there is no answer, where there is none."""
    jagged: bool = False
    """Of those between `surely` and `likely` some fit for sure, and some smaller ones do not fit."""

    most = Alias[int | None]("likely.most")
    needs_bytes = Alias[int | None]("likely.needs_bytes")
    range_bytes = Alias[tuple[int, int] | None]("likely.range_bytes")


class LongestSequence(Most):
    KEYS = ("method", "seq_len", "needs_bytes", "range_bytes", "beyond_seq_len", "micro_batch", "surely", "error")

    seq_len = Alias[int | None]("most")
    beyond_seq_len = Alias[int | None]("beyond")
    micro_batch = Alias[int]("at")


class LargestBatch(Most):
    KEYS = ("method", "micro_batch", "needs_bytes", "range_bytes", "beyond_micro_batch", "seq_len", "surely", "error")

    micro_batch = Alias[int | None]("most")
    beyond_micro_batch = Alias[int | None]("beyond")
    seq_len = Alias[int]("at")


@dataclass(frozen=True)
class FixedSettings(Result):
    """What was held fixed."""

    gpu: str
    capacity_bytes: int
    micro_batch: int
    seq_len: int
    weights_dtype: str
    autocast: str | None
    optimizer: str
    gradient_checkpointing: bool
    stack: str
    adapters: str | None
    """Rank and targets; None where only full training was asked about."""
    quantization: str | None
    """Of qlora; None where it was not asked about."""
    evidence: Evidence
    """What was measured of such runs."""


@dataclass(frozen=True)
class Largest(FixedSettings):
    schema: ClassVar[str] = "tunecast.largest/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "engine", "gpu", "capacity_bytes", "micro_batch", "seq_len", "weights_dtype", "autocast"),
        *("optimizer", "gradient_checkpointing", "stack", "adapters", "quantization", "measured_runs", "model"),
        *("positions", "models", "longest_sequence", "largest_batch", "predictions"),
    )

    engine: str
    card: str
    """As it was given; `gpu` is what it means."""
    predictions: int
    """How many it took."""
    models: tuple[LargestModel, ...] = ()
    longest_sequence: tuple[LongestSequence, ...] = ()
    largest_batch: tuple[LargestBatch, ...] = ()
    model: str | None = None
    positions: int | None = None
    """The longest sequence the model has positions for."""

    @property
    def measured_runs(self) -> int:
        """Of such stacks on this card, whose memory was measured."""
        return self.evidence.memory_runs

    @property
    def fits(self) -> bool:
        """Whether anything does."""
        rows: tuple[LargestModel | Most, ...] = (*self.models, *self.longest_sequence, *self.largest_batch)
        return any(row.likely is not None for row in rows)
