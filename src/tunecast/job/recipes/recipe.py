"""What was understood of a trainer's file: the job, where each field comes from, what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result

SCHEMA = "tunecast.job/1"


class Place(NamedTuple):
    """A key of a file; line 0: on the command line."""

    file: str
    line: int
    key: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.key}" if self.line else f"{self.file} {self.key}"


class Assumed(NamedTuple):
    value: Any
    whose: str
    """Whose default it is: `axolotl 0.17.0`."""


class NotUnderstood(NamedTuple):
    """A key that may move memory, time or cost, and that the job does not tell."""

    key: str
    file: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{Place(self.file, self.line, self.key)}: {self.why}"


@dataclass(frozen=True)
class Recipe(Result):
    KEYS: ClassVar = (
        "schema", "job", "framework", "release", "from", "assumed", "not_understood", "ignored", "refused",
        "global_batch", "data_sets",
    )  # fmt: skip
    FROM: ClassVar = {"from": "places"}

    job: Mapping[str, Any]
    """Fields as a job file has them, sections nested; not yet checked."""
    framework: str
    release: str
    """Whose defaults were taken."""
    places: Mapping[str, Place]
    """Of each field that was written down, by dotted name."""
    assumed: Mapping[str, Assumed]
    """Of each field that was not."""
    not_understood: tuple[NotUnderstood, ...]
    ignored: tuple[str, ...]
    """Keys that move neither memory nor time nor cost."""
    refused: str | None = None
    """Why nothing can be predicted of it: a task that is not modelled."""
    used: tuple[str, ...] = ()
    """Keys that were read and say something about the job."""
    global_batch: int | None = None
    """Rows of one optimizer step on all cards, where the file says these: `grad_accum` follows from the cards."""
    data_sets: tuple[str, ...] = ()
    """Training data, as the file names it."""
    schema: str = SCHEMA
