"""Which fields of a job its writer set: a planner keeps those, and may choose the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tunecast.job.job import sections
from tunecast.job.readers import FORMATS


def fields_given(source: str, overrides: Mapping[str, object] | None = None) -> frozenset[str]:
    """Dotted names of what a file of one job holds, and of what flags set. A file that cannot be read sets nothing:
    reading the job itself tells why."""
    path = Path(source)
    reader = FORMATS.get(path.suffix.lower())
    names = set(overrides or ())
    if reader is not None and path.name != "config.json":
        for found in reader(path):
            if isinstance(found.content, Mapping) and "model_type" not in found.content:
                names |= _names(found.content)
    return frozenset(names)


def _names(content: Mapping[object, object]) -> set[str]:
    names: set[str] = set()
    for key, value in content.items():
        if key in sections() and isinstance(value, Mapping):
            names |= {f"{key}.{leaf}" for leaf in value}
        elif key not in sections():
            names.add(str(key))
    return names
