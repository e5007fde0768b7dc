"""How far a predicted step may be off: an 80 % range, from what measured steps show.

`time_table.py` is written by `benchmarks/time_h200.py` from the errors of timed runs, each predicted without the others
of its model. Two things make a step uncertain in their own way: a card does what it does, a host is anybody's.

    measured card     the H200's own runs
    elsewhere         any other card: its rates are published, its steps were never measured here
    several cards     links, and ranks that wait for each other, come on top
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tunecast.predict.time_table import BANDS

if TYPE_CHECKING:
    from tunecast.predict.runtime import StepTime

MEASURED_CARD, ELSEWHERE, SEVERAL = "measured card", "elsewhere", "several cards"
CARD, HOST = "card", "host"
MEASURED = frozenset({"h200-sxm-141gb"})
WAITS = 0.1
"""Of a step, what the card waits at least for its host in a step that is the host's."""
ASSUMED: Mapping[str, float] = {ELSEWHERE: 0.12, SEVERAL: 0.2}
"""On either side, where no row of the table says it. Elsewhere: with nothing taken from an A100's steps, 70 published
ones lie within 12 % (the H200's share of a best product) or 8 % (the usual one)."""


class Band(NamedTuple):
    below: float
    """How far below the prediction the range begins, as a share of it."""
    above: float
    runs: int = 0
    models: int = 0
    covered: float | None = None
    """The share of runs inside a range made of the other models' runs."""


def host_share(step: StepTime) -> float:
    """Of the step, what the card waits for the host."""
    return step.breakdown_s.get("launch", 0.0) / step.step_s if step.step_s else 0.0


def waits_for_host(step: StepTime) -> bool:
    return host_share(step) > WAITS


def band_of(gpu_name: str, waits: str, several: bool = False) -> Band:
    """Of steps like it where some were measured; never narrower than on the measured card."""
    measured = Band(*BANDS[MEASURED_CARD, waits])
    if gpu_name in MEASURED and not several:
        return measured
    where = SEVERAL if several else ELSEWHERE
    assumed = ASSUMED[where]
    found = Band(*BANDS[where, waits]) if (where, waits) in BANDS else Band(assumed, assumed)
    return found._replace(below=max(found.below, measured.below), above=max(found.above, measured.above))


def range_of(step: StepTime, gpu_name: str, several: bool = False) -> tuple[float, float]:
    """The 80 % range of a step's seconds."""
    band = band_of(gpu_name, HOST if waits_for_host(step) else CARD, several)
    return step.step_s * (1 - band.below), step.step_s * (1 + band.above)
