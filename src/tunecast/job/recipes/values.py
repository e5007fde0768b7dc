"""Numbers and switches as YAML and JSON files spell them. None: it is none, or left to others ("auto")."""

from __future__ import annotations

import math

from tunecast.job.knob import BOOLS


def number(value: object) -> float | None:
    """`1e9`, which YAML takes for a text, is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if math.isfinite(read) else None


def whole(value: object) -> int | None:
    read = number(value)
    return int(read) if read is not None and read == int(read) else None


def switch(value: object) -> bool | None:
    """true, "true", "yes", 1."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {0: False, 1: True}.get(value)
    return BOOLS.get(value.strip().lower()) if isinstance(value, str) else None


def word(value: object) -> str:
    """In lower case; '' where it is none. YAML takes a bare `no` for false, which is meant where a word is asked."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**9 else ""
    return value.strip().lower() if isinstance(value, str) else ""
