"""The answer of `tunecast explain-oom` (`tunecast.oom/1`): what filled the card, what to change, the job beside it."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from tunecast.advise.changes import Change
from tunecast.advise.oom.advice import Advice
from tunecast.advise.oom.message import Filling, OomMessage, Process, filled, short_bytes
from tunecast.prediction.prediction import Prediction
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result


class FilledBytes(NamedTuple):
    """What filled the card; sums to its memory."""

    allocated: int
    unallocated: int
    outside_pytorch: int
    other_processes: int
    free: int


@dataclass(frozen=True)
class OomExplanation(Result):
    schema: ClassVar[str] = "tunecast.oom/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "messages", "message", "filled_bytes", "other_processes", "short_bytes", "advice", "prediction"),
        *("same_run", "changes"),
    )

    message: OomMessage
    messages: int
    """In the log."""
    advice: tuple[Advice, ...]
    prediction: Prediction | None = None
    """Of the job that ran out, with what the card had for PyTorch; None where no job is known."""
    same_run: bool | None = None
    """Whether the log can be of this job; None where it carries no figures."""
    changes: tuple[Change, ...] | None = None
    """To that job, each predicted."""

    @cached_property
    def filling(self) -> Filling | None:
        """None where the message carries no figures."""
        return filled(self.message)

    @property
    def filled_bytes(self) -> FilledBytes | None:
        of = self.filling
        if of is None:
            return None
        return FilledBytes(of.allocated_bytes, of.unallocated_bytes, of.outside_bytes, of.others_bytes, of.free_bytes)

    @property
    def other_processes(self) -> tuple[Process, ...]:
        return () if self.filling is None else self.filling.others

    @property
    def short_bytes(self) -> int | None:
        return short_bytes(self.message)
