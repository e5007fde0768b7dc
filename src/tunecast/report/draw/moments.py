"""Memory over a run, as plain values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from tunecast.records import NamedTuple, dataclass


class Moment(NamedTuple):
    """What is held after one event of the tape."""

    event: int
    """Position on the tape."""
    role_bytes: tuple[int, ...]
    """In the order of `Timeline.roles`."""
    reserved_bytes: int
    op: str = ""
    module: str = ""
    source: str = ""

    @property
    def allocated_bytes(self) -> int:
        return sum(self.role_bytes)


class Band(NamedTuple):
    """A phase of a step, from the event `begin` to before `end`."""

    phase: str
    step: int
    begin: int
    end: int


@dataclass(frozen=True)
class Timeline:
    events: int
    roles: tuple[str, ...]
    bands: tuple[Band, ...]
    moments: tuple[Moment, ...]
    peak_event: int
    """Where the peak is that the figures speak of. Loading may have held more: torch's peak counts from after it."""

    def peak(self) -> int:
        """Index of the moment at the peak, or of the last one before; 0 when there is none."""
        return max(0, bisect_right([moment.event for moment in self.moments], self.peak_event) - 1)


AFTER = "after"


def steps(bands: Sequence[Band]) -> list[Band]:
    """Neighbouring bands of one step as one. The phase is '' for a step, 'load' for loading, which is none, and `AFTER`
    for what a script does between its last step and the end of the trace, where no other step begins."""
    whole: list[Band] = []
    phases: list[set[str]] = []
    for band in bands:
        phase = "load" if band.phase == "load" else ""
        if whole and (whole[-1].phase, whole[-1].step) == (phase, band.step):
            whole[-1] = whole[-1]._replace(end=band.end)
            phases[-1].add(band.phase)
        else:
            whole.append(Band(phase, band.step, band.begin, band.end))
            phases.append({band.phase})
    if len(whole) > 1 and phases[-1] == {"other"} and "optimizer" in phases[-2]:
        whole[-1] = whole[-1]._replace(phase=AFTER)
    return whole
