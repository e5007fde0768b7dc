"""A row of somebody's price list, as it was read: not yet to be trusted."""

from __future__ import annotations

import math
from datetime import date

from tunecast.records import NamedTuple

MOST_USD_PER_HOUR = 10_000.0
"""A machine of 16 B300 at the dearest cloud costs a twentieth of it."""
MOST_GPUS = 72


class Listing(NamedTuple):
    provider: str
    gpu: str
    """As the list calls it: H100, A100-80GB, RTX-6000-Ada."""
    gpus: int
    usd_per_hour: float | None
    """Of the machine."""
    dated: date
    source: str
    spot_usd_per_hour: float | None = None
    form: str = ""
    """SXM, PCIe or NVL where the list says so."""
    gpu_memory_gib: float | None = None
    region: str = ""
    country: str = ""
    instance: str = ""
    vcpus: int | None = None
    ram_gib: float | None = None
    disk_gb: float | None = None
    via: str = ""
    term_hours: float | None = None
    guessed_form: bool = False
    """The list names form factors it does not know (it calls PCIe machines SXM)."""


def price(text: str | None) -> float | None:
    """A price of a list; None for what is none: empty, zero, negative, not a number, beyond all machines."""
    value = number(text)
    return value if value is not None and 0 < value <= MOST_USD_PER_HOUR else None


def number(text: str | None) -> float | None:
    try:
        value = float((text or "")[:32])
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def count(text: str | None) -> int | None:
    value = number(text)
    return int(value) if value is not None and value == int(value) and 1 <= value <= MOST_GPUS else None


def words(text: str | None, most: int = 80) -> str:
    """One printable line: names come from servers that are not trusted."""
    line = (text or "")[:most]
    return (line if line.isprintable() else "".join(filter(str.isprintable, line))).strip()
