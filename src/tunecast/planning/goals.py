"""What a search looks for: the front of what may be picked, and beside it the cheapest of other kinds.

A goal accepts some rigs and offers, and keeps the best points of those. It says of floors whether a choice at least
that dear and slow can still matter to it; what matters to no goal is cut. A front are choices none of which another
beats in both cost and time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tunecast.market.offer import Offer
from tunecast.planning.space import Rig
from tunecast.records import NamedTuple

T = TypeVar("T")


class Point(NamedTuple, Generic[T]):
    usd: float
    seconds: float
    order: tuple[int, ...]
    """Of equals the first counts, so that the answer is the same every time."""
    of: T


class Front(Generic[T]):
    """The cheapest first, which is the slowest."""

    def __init__(self) -> None:
        self._points: list[Point[T]] = []
        self._usd: list[float] = []

    def __iter__(self) -> Iterator[Point[T]]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    @property
    def first(self) -> Point[T] | None:
        """The cheapest."""
        return self._points[0] if self._points else None

    @property
    def last(self) -> Point[T] | None:
        """The fastest."""
        return self._points[-1] if self._points else None

    def dominates(self, usd: float, seconds: float) -> bool:
        """Whether some point is at least as good in both, and better in one."""
        place = bisect_right(self._usd, usd)
        if not place:
            return False
        best = self._points[place - 1]  # of all that cost no more, the fastest
        return best.seconds <= seconds and (best.seconds < seconds or best.usd < usd)

    def add(self, point: Point[T]) -> bool:
        """Whether it is on the front now."""
        if self.dominates(point.usd, point.seconds):
            return False
        place = bisect_left(self._usd, point.usd)
        if place < len(self._points):
            same = self._points[place]
            if (same.usd, same.seconds) == (point.usd, point.seconds) and same.order <= point.order:
                return False
        end = place
        while end < len(self._points) and self._points[end].seconds >= point.seconds:
            end += 1
        self._points[place:end] = [point]
        self._usd[place:end] = [point.usd]
        return True


PATIENCE = 200
"""Settings predicted, none of which fits for sure, before those that may not fit cut too."""


class Aim(NamedTuple):
    """What is looked for beside the front: the cheapest of these."""

    name: str
    accepts: Callable[[Rig, Offer], bool]
    within_s: float | None = None
    cheaper: bool = False
    """Whether it matters only where it is cheaper than all of the front."""


class Goal(Generic[T]):
    """A front; or, beside the front of another goal, the cheapest alone. With `within_s`, only what is over by then at
    the high end of its range counts."""

    def __init__(self, aim: Aim, front_of: Goal[T] | None = None) -> None:
        self.name, self.accepts, self.within_s, cheaper = aim
        self.whole = front_of is None
        self.rival = front_of if cheaper else None
        self.least_usd: float | None = None
        """The lowest floor, where nothing was found that is cheaper than the rival."""
        self.sure: Front[T] = Front()
        """What fits at the high end of its range too."""
        self.risky: Front[T] = Front()
        """What fits at its own figure."""
        self.tried = 0

    @property
    def front(self) -> Front[T]:
        """What fits for sure; only where long enough nothing does, what may not fit."""
        return self.sure if len(self.sure) or self.tried < PATIENCE else self.risky

    def is_cut(self, usd: float, seconds: float) -> bool:
        """Whether no choice of this cost and time at least can matter."""
        if self.within_s is not None and seconds > self.within_s:
            return True
        return self.front.dominates(usd, seconds) if self.whole else self.is_dear(usd)

    def is_dear(self, usd: float) -> bool:
        """Dearer than the cheapest known."""
        cheapest = self.front.first
        if cheapest is not None and usd > cheapest.usd:
            return True
        return self.rival is not None and self.rival.is_dear(usd)

    def is_slow(self, seconds: float) -> bool:
        fastest = self.front.last
        return fastest is not None and seconds > fastest.seconds

    def add(self, point: Point[T], high_s: Callable[[], float], *, surely: bool) -> bool:
        """Whether it counts. `high_s`: the high end of its time, asked only where a deadline needs it."""
        if self.within_s is not None and (point.seconds > self.within_s or high_s() > self.within_s):
            return False
        self.risky.add(point)
        if surely:
            self.sure.add(point)
        return True

    @property
    def found(self) -> Point[T] | None:
        """The best; none where the rival is cheaper, since then nobody looked for what is only less dear."""
        best = self.best
        return None if best is not None and self.rival is not None and self.rival.is_dear(best.usd) else best

    @property
    def best(self) -> Point[T] | None:
        """The cheapest that fits for sure, else of those that may."""
        return self.sure.first or self.risky.first
