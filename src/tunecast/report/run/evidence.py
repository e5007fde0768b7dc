"""One line on how far to trust a prediction: what was measured of its kind, and the ranges that follow from it.

The first figures are those of the ranges an answer prints, never of a narrower kind of runs. What follows them are
errors that were seen: how far the predictions of the nearest measured runs were off, and what the user's own runs
changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunecast.hardware.spec import card_name
from tunecast.prediction.evidence import FEWEST, ErrorSpread, Evidence
from tunecast.prediction.memory.ranges import Basis, band_of, is_unseen
from tunecast.prediction.memory.ranges_table import BANDS
from tunecast.prediction.values import Time
from tunecast.prediction.verdict import Room
from tunecast.units import percent

if TYPE_CHECKING:
    from tunecast.prediction.lessons.correction import Correction
    from tunecast.prediction.lessons.nearest import LikeRuns


def trust(
    evidence: Evidence,
    basis: Basis,
    room: Room,
    time: Time | None,
    like: LikeRuns | None = None,
    learned: Correction | None = None,
) -> str:
    """`RTX 4090: not measured; like cases: memory -3 to +5 % (10 runs on other GPUs), time ± 23 % (397 runs ...)`.

    `room` and `time` of the prediction; `time` None where none was predicted. `like`: the nearest runs; `learned`: of
    the user's runs.
    """
    told = [f"memory {_interval(room.low_bytes, room.needs_bytes, room.high_bytes)} ({_memory_runs(basis)})"]
    if time is not None:
        told.append(f"time {_interval(time.low_s, time.step_s, time.high_s)} ({_time_runs(evidence)})")
    line = f"{card_name(evidence.gpu_name)}: {_status(evidence, time is not None)}{', '.join(told)}"
    seen = [] if like is None else [like.words]
    seen += [] if learned is None else [learned.words]
    return "; ".join([line, *filter(None, seen)])


def _status(evidence: Evidence, timed: bool) -> str:
    if evidence.validated or (not timed and evidence.memory.runs >= FEWEST):
        return ""
    measured = evidence.memory.runs or evidence.card_time.runs
    return f"{'no such job was timed on it' if measured else 'not measured'}; like cases: "


def _interval(low: float, likely: float, high: float) -> str:
    """`± 5 %`, `-3 to +5 %`."""
    if not likely:
        return "not known"
    below, above = (likely - low) / likely, (high - likely) / likely
    digits = 0 if max(below, above) >= 0.015 else 1
    below_told, above_told = percent(below, digits), percent(above, digits)
    return f"± {above_told}" if below_told == above_told else f"-{below_told.removesuffix(' %')} to +{above_told}"


def _memory_runs(basis: Basis) -> str:
    band = band_of("reserved", basis)
    if basis.guessed:
        return "part of it is guessed"
    if not band.runs:
        return "no such run was measured"
    if (basis.own, "reserved") in BANDS:
        where = " on several GPUs" if basis.several else f" with {basis.stack}"
    elif is_unseen("reserved", basis):
        where = " of other training code"
    else:
        where = " on other GPUs" if not basis.measured_card else "" if basis.measured_releases else " of other releases"
    return f"{band.runs} runs{where}"


def _time_runs(evidence: Evidence) -> str:
    found, where = _timed(evidence)
    return f"{found.runs} runs{where}" if found.runs else "nobody timed such a run"


def _timed(evidence: Evidence) -> tuple[ErrorSpread, str]:
    if evidence.validated and evidence.time.runs >= FEWEST:
        return evidence.time, ""
    return (evidence.card_time, " of other jobs") if evidence.validated else (evidence.like_time, " on other GPUs")
