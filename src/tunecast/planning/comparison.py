"""The answer of `tunecast compare` (`tunecast.compare/1`): two jobs, what each costs, and the steps between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tunecast.advise.compare import MEASURES, FieldStep, measure, more_s, more_time
from tunecast.planning.price import Rent
from tunecast.prediction.prediction import Prediction
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result


class Rents(NamedTuple):
    """What each job costs on its own machines; None where no offer has them."""

    before: Rent | None = None
    after: Rent | None = None


class TimeDifference(NamedTuple):
    more_time_fraction: float | None
    """0.27: the second job takes 27 % more time for the same tokens."""
    total_s: float | None
    """Of the whole run."""


@dataclass(frozen=True)
class Comparison(Result):
    schema: ClassVar[str] = "tunecast.compare/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "before", "after", "cost", "difference_bytes", "difference_time", "difference_usd", "steps"),
    )

    before: Prediction
    after: Prediction
    cost: Rents
    steps: tuple[FieldStep, ...]
    """From one job to the other; what they cost sums to the differences."""
    problems: tuple[str, ...] = ()
    """What broke on the way and is left out."""

    @property
    def difference_bytes(self) -> Mapping[str, int]:
        return {name: measure(self.after, name) - measure(self.before, name) for name in MEASURES}

    @property
    def difference_time(self) -> TimeDifference:
        return TimeDifference(more_time(self.before, self.after), more_s(self.before, self.after))

    @property
    def difference_usd(self) -> float | None:
        """Of the whole run; of a million tokens where that is not known of both; None where nothing is."""
        before, after = self.cost
        if before is None or after is None:
            return None
        if before.total_usd is not None and after.total_usd is not None:
            return after.total_usd - before.total_usd
        old, new = before.usd_per_million_tokens, after.usd_per_million_tokens
        return None if old is None or new is None else new - old
