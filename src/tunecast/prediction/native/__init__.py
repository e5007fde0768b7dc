"""What was compiled of prediction/native/*.c, where a compiler was found; None where not: the same is there in Python.

A compiled file may outlive an edit of its source (a checkout, an installation over another), so it knows the checksum
of what it was made of, and only one that was made of the files beside it is used. `TUNECAST_NATIVE=0` goes without.
"""

from __future__ import annotations

import os
from zlib import crc32

from tunecast.tape import columns

try:
    from tunecast.prediction.native import _native
except ImportError:
    _native = None  # type: ignore[assignment]

SOURCES = ("_native.c", "_pricing.c", "_columns.c")


def checksum() -> int | None:
    """Of the sources, in order; None where they are not all there."""
    value = 0
    try:
        for name in SOURCES:
            with open(os.path.join(os.path.dirname(__file__), name), "rb") as source:
                value = crc32(source.read(), value)
    except OSError:
        return None
    return value


def is_usable() -> bool:
    if _native is None or os.environ.get("TUNECAST_NATIVE") == "0":
        return False
    return getattr(_native, "checksum", None) == checksum()


_usable = is_usable()
run = _native.run if _usable else None
least = _native.least if _usable else None
price = _native.price if _usable else None
columns.by(_native if _usable else None)
