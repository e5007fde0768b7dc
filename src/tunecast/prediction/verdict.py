"""The verdict: "fits", "may not fit" or "does not fit", read off a prediction's range; "not resolved" of a run that was
seen in part and fits so far. Every command asks here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tunecast.records import NamedTuple

Verdict = Literal["fits", "may not fit", "does not fit", "not resolved"]


class Room(NamedTuple):
    """What a run needs of what it may have, for PyTorch's allocator."""

    needs_bytes: int
    low_bytes: int
    high_bytes: int
    """The 80 % range of the prediction (`prediction/memory/ranges.py`)."""
    capacity_bytes: int
    fits: bool
    """By the prediction itself."""
    unresolved: str = ""
    """Why this is not the whole run, where it is not: a traced script failed, or never trained."""

    @property
    def surely(self) -> bool:
        """At the high end of the range too."""
        return self.fits and not self.unresolved and self.high_bytes <= self.capacity_bytes

    @property
    def perhaps(self) -> bool:
        """Not by the prediction, but by the low end of its range."""
        return not self.fits and self.low_bytes <= self.capacity_bytes

    def in_need(self, least_bytes: int) -> Room:
        """The same, said of the least the run completes with: what a report calls its need, whether it fits or not."""
        share = least_bytes / self.needs_bytes if self.needs_bytes else 1.0
        low_bytes, high_bytes = int(self.low_bytes * share), int(self.high_bytes * share)
        return self._replace(needs_bytes=least_bytes, low_bytes=low_bytes, high_bytes=high_bytes)

    @property
    def verdict(self) -> Verdict:
        """What is said to people. One that fits only at the low end of its range does not fit; what does not fit in
        part does not fit at all."""
        if self.unresolved and self.fits:
            return "not resolved"
        if self.surely:
            return "fits"
        return "may not fit" if self.fits else "does not fit"


def room_within(
    reserved: tuple[int, int, int], allocated_bytes: int, capacity_bytes: int, fits: bool, least: Callable[[], int]
) -> Room:
    """`reserved`: what PyTorch holds, and the low and the high end of its range, what lies outside PyTorch included.

    A run that fills its card with cached blocks needs less than it holds: the range of its least capacity counts
    then, which takes several replays (`least`) and is asked for only where it can decide.
    """
    needs_bytes, low_bytes, high_bytes = reserved
    if fits and high_bytes <= capacity_bytes:
        return Room(needs_bytes, low_bytes, high_bytes, capacity_bytes, fits)
    if fits and allocated_bytes * high_bytes > capacity_bytes * needs_bytes:  # what is in use is too much
        return Room(needs_bytes, low_bytes, high_bytes, capacity_bytes, fits)
    least_bytes = least()
    share = least_bytes / needs_bytes if needs_bytes else 1.0
    return Room(least_bytes, int(low_bytes * share), int(high_bytes * share), capacity_bytes, fits)
