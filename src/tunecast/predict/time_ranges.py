"""How far a predicted step may be off: an 80 % range, from what measured steps show.

`time_table.py` is written by `benchmarks/time_h200.py` from the errors of timed runs, each predicted without the others
of its model. Two things make a step uncertain in their own way: a card does what it does, a host is anybody's.

    measured card     the H200's own runs
    elsewhere         cards whose steps others published, which some rates were read off (`price/rates.py`)
    several cards     links, and ranks that wait for each other, come on top; by kind (`kinds_of`), since what is
                      uncertain differs: whose code it is, products in 8 or 4 bits with their casts and scales, and
                      short steps, of which a straggler or a late batch takes a larger share
    unseen            any other card: only its data sheet is known; and what is not validated on a known one
                      (`evidence.py`): a stack, a method or a precision that nobody timed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tunecast.predict.evidence import FAMILIES, FEWEST, evidence_for
from tunecast.predict.time_table import BANDS
from tunecast.records import replace

if TYPE_CHECKING:
    from tunecast.job.job import Job
    from tunecast.predict.runtime import StepTime

Key = TypeVar("Key")

MEASURED_CARD, ELSEWHERE, SEVERAL = "measured card", "elsewhere", "several cards"
CARD, HOST = "card", "host"
MEASURED = frozenset({"h200-sxm-141gb"})
PUBLISHED = frozenset(
    {"a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "h100-sxm-96gb", "b200-sxm-180gb", "gb200-186gb"}
)
"""Cards with fifty published steps or more (benchmarks/results/time_public.json and time_vendor.json)."""
WAITS = 0.1
"""Of a step, what the card waits at least for its host in a step that is the host's."""
LEAST = 0.09
"""On either side, of a card alone that others timed: three models in all, and with the A100's own left out of every
constant half of its published steps are more than 9 % off (benchmarks/results/time_left_out.json)."""
SHORT_S = 1.0
"""Of an optimizer step of several cards: below it what comes once a step counts (a straggler, the batch, the last
reduction), which published steps show as half of them being more than 12 % longer than predicted."""
UNSEEN = 0.23
"""On either side. Of 15 cards, each left out of every constant in turn, 11 have nine in ten of their steps within it
(time_left_out.json)."""


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


def kinds_of(stack: str, low_precision: bool, step_s: float) -> tuple[str, ...]:
    """What a step of several cards is alike to, the most alike first."""
    precision = "8 or 4 bits" if low_precision else "16 bits"
    length = "short" if step_s < SHORT_S else "long"
    family = FAMILIES.get(stack)
    own = () if family is None else (f"{family}, {precision}, {length}", f"{family}, {precision}")
    return (*own, precision, CARD)


def band_of(gpu_name: str, waits: str, several: bool = False, kinds: tuple[str, ...] = ()) -> Band:
    """Of steps like it where some were measured; never narrower than on the measured card."""
    measured = Band(*BANDS[MEASURED_CARD, waits])
    if gpu_name in MEASURED and not several:
        return measured
    where = SEVERAL if several else ELSEWHERE
    known = gpu_name in PUBLISHED | MEASURED
    tried = kinds if several and kinds and waits == CARD else (waits,)
    values = next((BANDS[where, kind] for kind in tried if (where, kind) in BANDS), None)
    found = Band(UNSEEN, UNSEEN) if values is None else Band(*values)
    least = UNSEEN if not known else 0.0 if several else LEAST
    return found._replace(below=max(found.below, measured.below, least), above=max(found.above, measured.above, least))


def range_of(
    step: StepTime, gpu_name: str, several: bool = False, kinds: tuple[str, ...] = (), least: float = 0.0
) -> tuple[float, float]:
    """The 80 % range of a step's seconds, at least so wide to either side."""
    band = band_of(gpu_name, HOST if waits_for_host(step) else CARD, several, kinds)
    return step.step_s * (1 - max(least, band.below)), step.step_s * (1 + max(least, band.above))


def least_of(job: Job, gpu_name: str, several: bool) -> float:
    """What such a range is on either side at least: the measured card was timed with one family of stacks, and what
    nobody timed at all is as uncertain as a card nobody timed."""
    found = evidence_for(gpu_name, job.stack, job.method, several, low_precision=job.matmul_dtype is not None)
    if not found.validated:
        return UNSEEN
    return 0.0 if several or found.time_runs >= FEWEST else LEAST


def ranged(times: Mapping[Key, StepTime], job: Job, gpu_name: str, several: bool) -> Mapping[Key, StepTime]:
    """Steps of a job with the ranges of its kind."""
    least = least_of(job, gpu_name, several)
    if not several and not least:
        return times
    made = {}
    for key, step in times.items():
        kinds = kinds_of(job.stack, job.matmul_dtype is not None, step.step_s) if several else ()
        low_s, high_s = range_of(step, gpu_name, several, kinds, least)
        made[key] = replace(step, low_s=low_s, high_s=high_s)
    return made
