"""What of the folder of somebody's own training file goes along to a machine that does not see it, and what stays here.

The file is started there as it is, in a copy of its folder, so that what it names beside itself is found. Keys and
tokens are never copied: hidden files (.env, .git, .ssh), files named like keys, and files that hold one stay here, and
that is said. What it names elsewhere on this machine it could not find there, and is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.records import NamedTuple
from tunecast.units import MB

OWN = "own"
"""The copy, beside the files of the launch."""
MOST_FILES, MOST_BYTES = 500, 100 * MB
"""Of a folder, without the data and the model that the job names: more is no folder of a training file alone, and
engines take file by file."""
SECRETS = (
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "*.jks", "*.env", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("_netrc", "*credential*", "*secret*", "*service?account*.json", "*.token", "token", "token.txt", "*kubeconfig*"),
)
"""Names, in small letters; hidden ones stay here whatever they are."""
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
MADE = ("__pycache__", "venv", "env", "node_modules", "wandb", "site-packages")
"""Folders that programs make."""
PLAIN = re.compile(r"[A-Za-z0-9_.,+=@-]+(/[A-Za-z0-9_.,+=@-]+)*")
"""Paths that no shell and no file of an engine takes for more than text."""
UPWARD = re.compile(r"\.\./[^\s\"',;:\])}]*")


class OwnFolder(NamedTuple):
    carried: Mapping[str, str]
    """The path here, by that beside the files of the launch."""
    left_out: tuple[str, ...]
    """What stays here, each with the reason."""


def own_folder(file: Path, job: Job) -> OwnFolder:
    """Raises `UsageError` where the file could not be started from a copy of its folder."""
    file = file.absolute()
    folder = file.parent
    require_inside(file, job)
    whole = {
        f"{OWN}/{path.relative_to(folder).as_posix()}": str(path)
        for path in map(Path, _named_by(job))
        if path != folder
    }
    carried, left_out, total_bytes = dict(whole), list[str](), 0
    for path in _walk(folder, left_out):
        name = path.relative_to(folder).as_posix()
        if any(path.is_relative_to(here) for here in whole.values()):
            continue
        reason = _reason(path, name)
        if path == file and reason:
            raise UsageError(f"{path}: is not copied: {reason}. To fix: give it another name", field="source")
        if reason:
            left_out.append(f"{name} ({reason})")
            continue
        carried[f"{OWN}/{name}"] = str(path)
        total_bytes += path.stat().st_size
        if len(carried) > MOST_FILES or total_bytes > MOST_BYTES:
            raise UsageError(
                f"{folder}: has more than {MOST_FILES} files or {MOST_BYTES / MB:.0f} MB to copy. To fix: put "
                f"{file.name} and what it reads into a folder of their own",
                field="source",
            )
    return OwnFolder(dict(sorted(carried.items())), tuple(left_out))


def require_inside(file: Path, job: Job) -> None:
    """What the file names has to lie in its folder, and be named from there."""
    folder, text = file.parent, _text(file)
    remedy = f"To fix: put it beside {file.name}, and name it by a path that begins there"
    for path in _named_by(job):
        if not Path(path).is_relative_to(folder):
            raise UsageError(f"{file}: trains with {path}, which is outside its folder. {remedy}", field="source")
    if len(folder.parts) > 1 and f"{folder}/" in text:
        raise UsageError(f"{file}: names its folder by {folder}, which is another one there. {remedy}", field="source")
    for upward in UPWARD.findall(text):
        if (folder / upward).exists():
            raise UsageError(f"{file}: names {upward}, which is outside its folder. {remedy}", field="source")


def _named_by(job: Job) -> list[str]:
    """Data and model, where they are files of this machine."""
    named = [each for each in (job.data.path, job.model) if each is not None]
    return [os.path.abspath(each) for each in named if os.path.exists(each)]


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}", field="source") from None


def _walk(folder: Path, left_out: list[str]) -> Iterator[Path]:
    """Files, in an order that is always the same. Links are not followed: they may lead anywhere."""
    for place, folders, files in os.walk(folder):
        kept = []
        for name in sorted(folders):
            path = Path(place, name)
            if name.startswith(".") or name in MADE or path.is_symlink():
                left_out.append(f"{path.relative_to(folder).as_posix()}/ ({_kind(path)})")
            else:
                kept.append(name)
        folders[:] = kept
        yield from (Path(place, name) for name in sorted(files))


def _kind(path: Path) -> str:
    return "a link" if path.is_symlink() else "hidden" if path.name.startswith(".") else "made by programs"


def _reason(path: Path, name: str) -> str:
    """Why it stays here; '': it is copied."""
    if path.is_symlink() or path.name.startswith("."):
        return _kind(path)
    if not path.is_file():
        return "no plain file"
    if any(fnmatch(path.name.lower(), pattern) for pattern in SECRETS):
        return "named like a key"
    if not PLAIN.fullmatch(name):
        return "its name has other characters than letters, digits and .,+=@_-"
    try:
        with path.open("rb") as opened:
            return "a private key" if PRIVATE_KEY.search(opened.read(MOST_BYTES)) else ""
    except OSError:
        return "it cannot be read"


def left_out_note(left_out: Sequence[str]) -> str:
    """In a line; of many the first."""
    shown = ", ".join(left_out[:8])
    return f"stays here: {shown}{f' and {len(left_out) - 8} more' if len(left_out) > 8 else ''}"
