"""Changes to a job in the words of the trainer whose file it is, read back before they count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.recipes import find_recipe, words_for
from tunecast.job.recipes.recipe import Recipe


def words_of(recipe: Recipe, changes: Mapping[str, object]) -> dict[str, object] | None:
    """Keys of the file that say these fields; None where it has none for one of them. Whoever writes them reads them
    back: not every value can be said."""
    words: dict[str, object] = {}
    for field, value in changes.items():
        said = words_for(recipe, field, value)
        if said is None:
            return None
        words |= said
    return words


def own_words(path: Path, recipe: Recipe, changes: Mapping[str, object]) -> dict[str, object] | None:
    """The same, and None where they say something else when read back."""
    words = words_of(recipe, changes)
    if words is None:
        return None
    try:
        read = find_recipe(path, words)
    except TunecastError:
        return None
    if read is None or any(not _is_same(_field(read.job, field), value) for field, value in changes.items()):
        return None
    return words


def _field(job: Mapping[str, Any], dotted: str) -> object:
    found: Any = job
    for name in dotted.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _is_same(read: object, value: object) -> bool:
    """In which order kernels are named says nothing."""
    if isinstance(read, (list, tuple)) and isinstance(value, (list, tuple)):
        return sorted(map(str, read)) == sorted(map(str, value))
    return read == value
