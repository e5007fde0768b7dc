"""Which files a data set is: one that is named, or those of a folder, the training split first.

A folder may be one that `datasets` saved (save_to_disk), a copy of a repository of the Hub, or plain files. Links to
plain files are followed, as the Hub's cache is made of them; links to folders, pipes and devices are left out by name.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping

from tunecast.errors import NotResolved, UsageError
from tunecast.job.knob import shown
from tunecast.records import NamedTuple

FORMATS: Mapping[str, str] = {
    ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".jsonl": "jsonl",
    ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".txt": "text",
}  # fmt: skip
"""By ending; of a folder with several the first one counts, and the others are left out."""
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
MOST_FILES = 100_000
_META = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json"})
"""What `datasets` and the Hub put beside the data, as `datasets` does with files called cache-…"""
_TRAIN = re.compile(r"(?:^|[-_./])train(?:ing)?(?=[-_./]|$)")
_HELD_OUT = re.compile(r"(?:^|[-_./])(?:test|valid|validation|val|dev|eval)(?=[-_./]|$)")


class TextFile(NamedTuple):
    path: str
    format: str
    """A value of `FORMATS`."""
    compression: str
    """One of `COMPRESSIONS`, or nothing."""
    size_bytes: int
    changed_ns: int


class FilesFound(NamedTuple):
    files: tuple[TextFile, ...]
    left_out: tuple[str, ...]
    """Names, each with the reason."""


def files_of(path: str) -> FilesFound:
    """Raises `NotResolved` where there is nothing to read, `UsageError` where the ending is not known."""
    try:
        seen = os.stat(path)
    except (OSError, ValueError) as error:
        raise NotResolved(f"{shown(path)}: {_reason(error)}", field="data.path") from None
    if stat.S_ISDIR(seen.st_mode):
        return _of_folder(path)
    if not stat.S_ISREG(seen.st_mode):
        raise NotResolved(f"{path}: neither a plain file nor a folder", field="data.path")
    format, compression = _told_by(path)
    if format is None:
        endings = ", ".join(FORMATS)
        raise UsageError(
            f"{path}: the ending tells no format; allowed: {endings}, each also {', '.join(COMPRESSIONS)}; or a folder",
            field="data.path",
        )
    return FilesFound((TextFile(path, format, compression, seen.st_size, seen.st_mtime_ns),), ())


def _told_by(name: str) -> tuple[str | None, str]:
    root, ending = os.path.splitext(name.lower())
    if ending in COMPRESSIONS:
        return FORMATS.get(os.path.splitext(root)[1]), ending
    return FORMATS.get(ending), ""


def _of_folder(folder: str) -> FilesFound:
    left_out: list[str] = []
    found: list[TextFile] = []
    for name in _names(folder, left_out):
        file = _plain_file(folder, name, left_out)
        if file is not None:
            found.append(file)
    formats = list(dict.fromkeys(FORMATS.values()))
    if found:
        first = min((file.format for file in found), key=formats.index)
        others = [file for file in found if file.format != first]
        left_out += [f"{_inside(folder, file)}: {first} files are read" for file in others]
        found = [file for file in found if file.format == first]
    kept = _training_split(folder, found)
    left_out += [f"{_inside(folder, file)}: another split" for file in found if file not in kept]
    if not kept:
        told = f"; left out: {'; '.join(left_out[:5])}" if left_out else ""
        raise NotResolved(f"{folder}: no file of {', '.join(FORMATS)} in it{told}", field="data.path")
    return FilesFound(tuple(kept), tuple(left_out))


def _names(folder: str, left_out: list[str]) -> Iterator[str]:
    """Of all that is inside, in the order of their names; nothing hidden."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in [each for each in folders if os.path.islink(os.path.join(place, each))]:
            left_out.append(f"{os.path.relpath(os.path.join(place, name), folder)}: a link to a folder")
        for name in sorted(names):
            count += 1
            if count > MOST_FILES:
                raise NotResolved(f"{folder}: more than {MOST_FILES:,} files, the most that is read", field="data.path")
            if not name.startswith((".", "cache-")) and name not in _META:
                yield os.path.relpath(os.path.join(place, name), folder)


def _plain_file(folder: str, name: str, left_out: list[str]) -> TextFile | None:
    format, compression = _told_by(name)
    if format is None:
        return None
    path = os.path.join(folder, name)
    try:
        seen = os.stat(path)
    except OSError as error:
        left_out.append(f"{name}: {_reason(error)}")
        return None
    if not stat.S_ISREG(seen.st_mode):
        left_out.append(f"{name}: not a plain file")
        return None
    return TextFile(path, format, compression, seen.st_size, seen.st_mtime_ns)


def _training_split(folder: str, files: list[TextFile]) -> list[TextFile]:
    """What is named so; else all that is not named as held out."""
    train = [file for file in files if _TRAIN.search(_inside(folder, file))]
    return train or [file for file in files if not _HELD_OUT.search(_inside(folder, file))] or files


def _inside(folder: str, file: TextFile) -> str:
    return os.path.relpath(file.path, folder)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return error.strerror or "cannot be read" if isinstance(error, OSError) else "not a path"
