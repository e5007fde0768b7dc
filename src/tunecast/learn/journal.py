"""Records from journals: of a run that ended, one that goes on, and one that was killed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved
from tunecast.learn.inside.journal import lines
from tunecast.learn.inside.merge import RUN, merged_folder


def record_of(path: str | os.PathLike[str], *, ended: float | None = None) -> dict[str, Any]:
    """Of a journal, or of the folder that one lies in. Without its last line the program was killed, and the record
    says so; `ended`: when, where that is known better than by the journal's last line."""
    place = Path(path)
    folder, name = (place, RUN) if place.is_dir() else (place.parent, place.name)
    try:
        found = merged_folder(str(folder), None, ended, name)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # whoever wrote it
        found = None
    if found is None:
        raise NotResolved(f"{place}: no journal of a run. To fix: name run.jsonl, or the folder it lies in")
    return found


def is_journal(path: str | os.PathLike[str]) -> bool:
    """Whether a file is the journal of a run, or a folder holds one."""
    place = Path(path)
    place = place / RUN if place.is_dir() else place
    return place.is_file() and next(lines(str(place)), {}).get("event") == "begin"


def last_line(folder: Path) -> str | None:
    """What was last said of a run: measured against predicted."""
    found = None
    for line in lines(str(folder / RUN)):
        found = said_in(line) or found
    return found


def said_in(line: Mapping[str, Any]) -> str | None:
    """Of a journal's line: what compared it with its prediction, and the warnings that held then."""
    told, warned = line.get("line"), line.get("warnings")
    if not isinstance(told, str) or not told:
        return None
    each = [text for text in warned if isinstance(text, str) and text] if isinstance(warned, list) else []
    return ". ".join([told, *(f"{text[0].upper()}{text[1:]}" for text in each)])
