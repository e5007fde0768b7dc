"""The training data that a file names: what is here is counted, and well-known data sets have known lengths
(job/lengths.toml).

A framework names the keys that hold data sets in `DATA`: `("datasets.*.path",)`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from tunecast.errors import TunecastError
from tunecast.job.lengths import data_set_of
from tunecast.job.recipes.document import leaves
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.recipe import Place
from tunecast.job.recipes.request import ReadRequest
from tunecast.job.texts.files import files_of

OF_DATA = ("data.path", "data.lengths")
FIRST_ROWS = re.compile(r"\w+\[:(\d{1,12})\]")
"""A split of the `datasets` library: `train[:3000]`."""


def take_data(draft: Draft, request: ReadRequest, patterns: Iterable[str]) -> None:
    """The data sets that are named. Of one alone, `data.path` where it is a file or folder here, looked for where the
    command is given and beside the file; `data.lengths` where it is well known."""
    named = dict(_named(request, tuple(patterns)))
    draft.data_sets = named
    if draft.refused or any(field in draft.fields for field in OF_DATA):
        return
    if len({key.rpartition(".")[0] for key in named}) != 1:
        return
    for key, name in named.items():
        found = {"data.path": _found(name, request.folder), "data.lengths": data_set_of(name)}
        for field, value in found.items():
            if value is not None:
                draft.fields[field] = value
                draft.places[field] = Place(*request.document.place(key), key)
                return


def take_data_set(
    draft: Draft, keys: Keys, key: str, name: object, split: object = None, folder: Path | None = None
) -> None:
    """The one data set that is trained on, which `key` says: a well-known one, or where a `folder` is given one that
    is here."""
    if not isinstance(name, str) or any(field in draft.fields for field in OF_DATA):
        return
    here = None if folder is None else _found(name, folder)
    known = data_set_of(name)
    if here is not None:
        draft.put("data.path", here, keys, key)
    elif known is not None:
        draft.put("data.lengths", known, keys, key)
    else:
        return
    part = FIRST_ROWS.fullmatch(split) if isinstance(split, str) else None
    if part is not None and "data.samples" not in draft.fields and int(part[1]) > 0:
        draft.put("data.samples", int(part[1]), keys, key)


def _named(request: ReadRequest, patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
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
