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
        if (said := _said(name, request.folder)) is not None:
            field, draft.fields[field] = said
            draft.places[field] = Place(*request.document.place(key), key)
            return


def take_data_set(draft: Draft, keys: Keys, key: str, name: str, split: object, folder: Path) -> None:
    """The one data set that is trained on, which `key` says."""
    said = None if any(field in draft.fields for field in OF_DATA) else _said(name, folder)
    if said is None:
        return
    draft.put(*said, keys, key)
    part = FIRST_ROWS.fullmatch(split) if isinstance(split, str) else None
    if part is not None and "data.samples" not in draft.fields and int(part[1]) > 0:
        draft.put("data.samples", int(part[1]), keys, key)


def _said(name: str, folder: Path) -> tuple[str, str] | None:
    """The field that a data set of this name says, and its value."""
    if (here := _found(name, folder)) is not None:
        return "data.path", here
    known = data_set_of(name)
    return None if known is None else ("data.lengths", known)


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
