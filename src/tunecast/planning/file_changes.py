"""The answer of `tunecast diff` (`tunecast.diff/1`): what changed training files needed and cost, and do now."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.prediction.verdict import Verdict
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result

CHANGED, NEW, DELETED, NAMES_ANOTHER = "changed", "new", "deleted", "names a changed file"


class PlannedRun(NamedTuple):
    """The cheapest pick of a plan."""

    hardware: str
    provider: str
    total_usd: float
    total_s: float


class FileState(NamedTuple):
    """A training file as it was or is, predicted."""

    title: str
    """`llama-3.1-8b, QLoRA, 1 x 2,048 tokens on 1 x RTX 4090`."""
    framework: str
    verdict: Verdict
    fits: bool
    fits_surely: bool
    needs_bytes: int
    """The least that PyTorch completes it with: `smallest_capacity_bytes` of `tunecast predict`."""
    capacity_bytes: int
    exactness: str
    not_understood: int
    """Keys that may move memory, time or cost and that nothing was made of."""
    step_s: float | None
    total_s: float | None
    """Of the whole run; None where the file does not say how much data there is."""
    total_usd: float | None
    """Of the whole run on the cheapest offer of exactly these machines."""
    usd_per_million_tokens: float | None
    offer: str
    """That offer, in words; '' where there is none."""
    plan: PlannedRun | None
    """Where a plan was asked for and found something."""


class FieldChange(NamedTuple):
    """A field of the job that changed, and the key of the file that says it."""

    field: str
    key: str
    """'' where no key says it: it follows from another, or from a default."""
    file: str
    """With that key: the training file, or one that it names."""
    line: int
    """Of that key now; 0 where it is gone."""
    before: Any
    after: Any
    needs_bytes: int | None
    """What the job needs more for it, the changes before it made; None of one that is counted with the change before
    it, and where there is nothing to compare with."""
    more_time_fraction: float | None
    """0.27: 27 % more time for the same tokens."""


@dataclass(frozen=True)
class FileChange(Result):
    """One training file."""

    path: str
    old_path: str
    """Another one only where it was renamed."""
    kind: str
    """`CHANGED`, `NEW`, `DELETED`; `NAMES_ANOTHER`: it did not change, and names a file that did."""
    before: FileState | None
    after: FileState | None
    """None where the file is not there, or where `problem` says why it is not known."""
    changes: tuple[FieldChange, ...]
    more_time_fraction: float | None
    problem: str | None
    """Why there is no answer for it as it is now."""
    old_problem: str | None
    """Why there is none for it as it was."""


@dataclass(frozen=True)
class FileChanges(Result):
    schema: ClassVar[str] = "tunecast.diff/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "base", "head", "files", "left_out")

    base: str
    head: str
    """Of both, what they are, in words."""
    files: tuple[FileChange, ...]
    left_out: int
    """Changed files that nobody looked at: there were too many, or the time was over."""

    def with_verdict(self, *verdicts: str) -> tuple[FileChange, ...]:
        """Files with such a verdict now."""
        return tuple(file for file in self.files if file.after is not None and file.after.verdict in verdicts)
