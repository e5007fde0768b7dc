"""One line on how far to trust a prediction: what was measured of its kind, and how close predictions came."""

from __future__ import annotations

from tunecast.hardware.names import card_name
from tunecast.predict.evidence import FEWEST, Evidence, Spread
from tunecast.units import percent


def trust(evidence: Evidence, *, timed: bool = True) -> str:
    """`H200 SXM 141 GB: peak in use ± 0.0 % (9 in 10 of 112 runs within 0.1 %), time ± 3 % (...)`.

    Of what nobody measured, how close predictions of like runs came. `timed`: a time was predicted too.
    """
    memory = _spread("peak in use", *_memory(evidence), digits=1)
    told = [memory, _spread("time", *_time(evidence))] if timed else [memory]
    return f"{card_name(evidence.gpu_name)}: {_status(evidence, timed)}{', '.join(told)}"


def _status(evidence: Evidence, timed: bool) -> str:
    if evidence.validated or (not timed and evidence.memory.runs >= FEWEST):
        return ""
    measured = evidence.memory.runs or evidence.card_time.runs
    return f"{'not validated' if measured else 'not measured'}; like cases: "


def _memory(evidence: Evidence) -> tuple[Spread, str]:
    return (evidence.memory, "") if evidence.memory.runs >= FEWEST else (evidence.like_memory, " on other GPUs")


def _time(evidence: Evidence) -> tuple[Spread, str]:
    if evidence.validated and evidence.time.runs >= FEWEST:
        return evidence.time, ""
    return (evidence.card_time, " of other jobs") if evidence.validated else (evidence.like_time, " on other GPUs")


def _spread(kind: str, found: Spread, where: str, *, digits: int = 0) -> str:
    if found.median is None or found.p90 is None:
        return f"{kind} never measured"
    within = f"9 in 10 of {found.runs} runs{where} within {percent(found.p90, digits)}"
    return f"{kind} ± {percent(found.median, digits)} ({within})"
