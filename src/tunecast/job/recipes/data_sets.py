"""The training data that a file names, where it is at hand: its lengths are then counted, not assumed.

A framework names the keys that hold data sets in `DATA`: `("datasets.*.path",)`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from tunecast.errors import TunecastError
from tunecast.job.recipes.document import leaves
from tunecast.job.recipes.draft import Draft
from tunecast.job.recipes.recipe import Place
from tunecast.job.recipes.request import Request
from tunecast.job.texts.files import files_of

OF_DATA = ("data.path", "data.lengths")


def take_data(draft: Draft, request: Request, patterns: Iterable[str]) -> None:
    """The data sets that are named; and `data.path`, where it is one alone and a file or folder here, looked for
    where the command is given and beside the file."""
    named = dict(_named(request, tuple(patterns)))
    draft.data_sets = named
    if draft.refused or any(field in draft.fields for field in OF_DATA):
        return
    if len({key.rpartition(".")[0] for key in named}) != 1:
        return
    for key, name in named.items():
        path = _found(name, request.folder)
        if path is not None:
            draft.fields["data.path"] = path
            draft.places["data.path"] = Place(*request.document.place(key), key)
            return


def _named(request: Request, patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for key, value in leaves(request.document.tree):
        if isinstance(value, str) and value and any(fnmatchcase(key, pattern) for pattern in patterns):
            yield key, value


def _found(name: str, folder: Path) -> str | None:
    if "\0" in name or "://" in name or len(name) > 4096:
        return None
    for path in (Path(name), folder / name):
        try:
            if os.path.exists(path) and files_of(str(path)).files:
                return str(path)
        except (OSError, ValueError, TunecastError):
            continue
    return None
