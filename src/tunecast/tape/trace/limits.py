"""How long a traced process may run and how much it may hold. A file of its own: the command line names the defaults,
and most calls start no process."""

from __future__ import annotations

from tunecast.records import NamedTuple
from tunecast.units import GIB


class TraceLimits(NamedTuple):
    seconds: float = 900
    memory_bytes: int = 16 * GIB
