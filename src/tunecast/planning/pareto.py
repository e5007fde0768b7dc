"""Choices none of which another beats in both cost and time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

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
