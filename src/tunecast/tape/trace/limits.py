"""How long a traced process may run and how much it may hold. A file of its own: the command line names the defaults,
and most calls start no process."""

from __future__ import annotations

from tunecast.records import NamedTuple
from tunecast.units import GIB, MIB


class TraceLimits(NamedTuple):
    seconds: float = 900
    memory_bytes: int = 16 * GIB
    """Of the host, in the script and the programs it starts."""
    disk_bytes: int = 16 * GIB
    """In the files a script writes."""
    files: int = 100_000
    processes: int = 64
    output_bytes: int = 16 * MIB
    """Of a script that are shown; what comes after is read and dropped."""
