"""Runs that come with the package: measured on other people's cards, in the form in which anybody's are published."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from typing import Any

FILE = os.path.join(os.path.dirname(__file__), "shipped_runs.jsonl.gz")


def shipped_records() -> Iterator[dict[str, Any]]:
    """As records, not yet validated; none where the package was built without them."""
    if not os.path.exists(FILE):
        return
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)
