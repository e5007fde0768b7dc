"""One line on how far to trust a prediction: what was measured of its kind, and how close predictions came."""

from __future__ import annotations

from tunecast.predict.evidence import Evidence, Spread
from tunecast.units import percent


def trust(evidence: Evidence) -> str:
    """`h100-sxm-80gb: 103 runs, ...`, or for what nobody measured also how close predictions of like runs came."""
    if evidence.validated:
        return evidence.words
    like = [
        _spread("time", evidence.like_time, "other cards, each as if it had not been measured"),
        _spread("memory", evidence.like_memory, f"{evidence.stack} and its like"),
    ]
    return f"not validated. {evidence.words}. Like cases: {'; '.join(filter(None, like)) or 'none'}"


def _spread(kind: str, found: Spread, where: str) -> str:
    if found.median is None or found.p90 is None:
        return f"{kind} was never measured ({where})"
    return (
        f"{kind} ± {percent(found.median, 1)} at the median, ± {percent(found.p90, 1)} for nine in ten "
        f"({found.runs} runs: {where})"
    )
