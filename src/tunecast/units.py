"""The only place where a number means a unit."""

from __future__ import annotations

import re
from collections.abc import Mapping

KIB = 2**10
MIB = 2**20
GIB = 2**30
KILO = 10**3
MB = 10**6
GB = 10**9
TERA = 10**12
HOUR_S = 3600
UNITS_S = {"s": 1, "m": 60, "min": 60, "h": HOUR_S, "d": 24 * HOUR_S}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|min|h|d)")


def duration_s(text: str) -> float | None:
    """`6h`, `90min`, `2d`; None where it is none."""
    found = _DURATION.fullmatch(text.strip()[:40])
    return None if found is None or not float(found[1]) else float(found[1]) * UNITS_S[found[2]]


def gib(nbytes: float) -> str:
    """`74.85 GiB`, or MiB, KiB, B below one of the next."""
    for size, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.2f} {name}"
    return f"{int(nbytes)} B"


SIZES: Mapping[str, int] = {
    **{"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40},
    **{"KB": 10**3, "MB": 10**6, "GB": GB, "TB": TERA},
}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([a-zA-Z]{1,3})")


def bytes_from(text: str) -> int | None:
    """`2GiB`, `40 GB`, `1.5gib`: whole bytes. None for anything else, `2G` included: it could be either."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    unit = next((size for name, size in SIZES.items() if name.lower() == found[2].lower()), None)
    return None if unit is None else round(float(found[1]) * unit)


def billions(count: int) -> str:
    """`8.03B`, or `124.4M` below a billion: how people name models."""
    return f"{count / 10**9:.2f}B" if count >= 10**9 else f"{count / 10**6:.1f}M"


def hours(seconds: float) -> str:
    """`4.2 h`, `35 min`."""
    return f"{seconds / HOUR_S:.1f} h" if seconds >= HOUR_S else f"{seconds / 60:.0f} min"


def digits(value: float, count: int = 3) -> str:
    """So many significant digits, and all before the point: `0.21`, `4.2`, `3,330`; a large one has no exponent."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (count - 1) else f"{value:.{count}g}"


def percent(fraction: float, digits: int = 0) -> str:
    """`57.8 %`."""
    return f"{100 * fraction:.{digits}f} %"


def positive(given: object) -> int | None:
    """The whole number from 1 on that was given, as text or not; None where it is none, or has ten digits and more."""
    if isinstance(given, str):
        given = int(given) if given.isdecimal() and len(given) < 10 else None
    return given if isinstance(given, int) and not isinstance(given, bool) and 1 <= given < 10**9 else None
