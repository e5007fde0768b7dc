"""What a reader finds: a document, or why there is none, and where it stood."""

from __future__ import annotations

from tunecast.errors import TunecastError
from tunecast.records import NamedTuple


class Found(NamedTuple):
    where: str
    """`jobs.jsonl line 7`: put before every message about it."""
    content: object | TunecastError
