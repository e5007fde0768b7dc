"""Two states of a git repository side by side, in folders of their own: nothing is checked out, nothing is executed.

Of each state the small text files are written out that a training file, and what it names, may be. Contents may come
from anyone: names are checked, sizes and counts bounded, links and submodules left out.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from tunecast.errors import NotResolved, UsageError
from tunecast.job.knob import shown
from tunecast.job.readers.bounds import MOST_FILE_BYTES, bounded_bytes
from tunecast.job.recipes import ENDINGS
from tunecast.records import NamedTuple
from tunecast.units import MIB

READ = (*ENDINGS, ".jsonl")
MOST_WRITTEN = 4000
"""Files of one state; those nearest to what changed come first."""
MOST_WRITTEN_BYTES = 64 * MIB
GIT_S = 120.0
"""Seconds that one question to git may take."""
SETTINGS = ("core.fsmonitor=false", "core.quotePath=false", "diff.external=", "core.hooksPath=/dev/null")
"""What a repository's own settings could have git run."""
ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
INDEX, WORKING = "the index", "the working tree"


class States(NamedTuple):
    """What is compared."""

    root: Path
    """Of the repository."""
    base: str
    """A tree's or a commit's hash."""
    head: str
    """The same, or `INDEX`, or `WORKING`."""
    base_words: str
    head_words: str


class ChangedPath(NamedTuple):
    old: str | None
    """None: it was not there."""
    new: str | None


def states_of(asked: str | None, *, staged: bool = False, folder: Path | None = None) -> States:
    """`asked`: BASE (the working tree against where it left BASE), or BASE..HEAD or BASE...HEAD as git has them; None:
    the last commit. `staged`: the index in the place of the working tree."""
    root = Path(os.fsdecode(_git(folder or Path.cwd(), "rev-parse", "--show-toplevel")).rstrip("\n"))
    if asked is None:
        head, words = (INDEX, INDEX) if staged else (WORKING, WORKING)
        return States(root, _last_commit(root), head, "HEAD", words)
    if staged:
        raise UsageError(f"--staged: got {shown(asked)} too; allowed: one of them", field="--staged")
    for dots in ("...", ".."):
        if dots in asked:
            old, new = (part or "HEAD" for part in asked.split(dots, 1))
            base, head = _commit(root, old), _commit(root, new)
            return States(root, _fork(root, base, head) if dots == "..." else base, head, old, new)
    base = _commit(root, asked)
    return States(root, _fork(root, base, _commit(root, "HEAD")), WORKING, asked, WORKING)


def changed_paths(states: States, paths: Sequence[str] = ()) -> list[ChangedPath]:
    """Files that differ, renamed ones as one. `paths`: only these, and what is in them."""
    root, asked = states.root, ["--", *_inside(states.root, paths)] if paths else []
    common = ("-r", "-z", "-M", "--raw", "--no-ext-diff", "--no-textconv")
    if states.head == INDEX:
        told = _git(root, "diff-index", "--cached", *common, states.base, *asked)
    elif states.head == WORKING:
        told = _git(root, "diff-index", *common, states.base, *asked)
    else:
        told = _git(root, "diff-tree", *common, states.base, states.head, *asked)
    found = list(_raw(told))
    if states.head == WORKING:
        others = _git(root, "ls-files", "-z", "--others", "--exclude-standard", *asked)
        found += [ChangedPath(None, name) for name in _names(others)]
    return [each for each in found if all(name is None or is_safe(name) for name in each)]


def write_states(states: States, near: Iterable[str], before: Path, after: Path) -> None:
    """Both states, as far as a reader looks."""
    folders = {str(parent) for name in near for parent in PurePosixPath(name).parents}
    _write_objects(states.root, _tree(states.root, states.base), folders, before)
    if states.head == WORKING:
        _copy(states.root, folders, after)
    else:
        objects = _staged(states.root) if states.head == INDEX else _tree(states.root, states.head)
        _write_objects(states.root, objects, folders, after)


def is_safe(name: str) -> bool:
    """Whether a name out of a tree stays inside of a folder it is put in."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and not {"..", ".git"} & set(parts) and "\0" not in name


def is_readable(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in READ


def _nearest(names: Iterable[str], folders: set[str]) -> list[str]:
    """Beside what changed and above it first, then the rest; each in the order of names."""
    found = (name for name in names if is_readable(name) and is_safe(name))
    return sorted(found, key=lambda name: (str(PurePosixPath(name).parent) not in folders, name))[:MOST_WRITTEN]


def _write_objects(root: Path, objects: Mapping[str, str], folders: set[str], to: Path) -> None:
    names = _nearest(objects, folders)
    sizes = _git(root, "cat-file", "--batch-check=%(objecttype) %(objectsize)", given=_lines(objects, names))
    wanted, total = [], 0
    for name, line in zip(names, sizes.decode().splitlines(), strict=True):
        kind, _, size = line.partition(" ")
        if kind != "blob" or int(size) > MOST_FILE_BYTES or total + int(size) > MOST_WRITTEN_BYTES:
            continue
        wanted.append(name)
        total += int(size)
    told, at = _git(root, "cat-file", "--batch", given=_lines(objects, wanted)), 0
    for name in wanted:
        begin = told.index(b"\n", at) + 1
        end = begin + int(told[at:begin].rsplit(b" ", 1)[1])
        _write(to / name, told[begin:end])
        at = end + 1


def _copy(root: Path, folders: set[str], to: Path) -> None:
    listed = _names(_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"))
    total = 0
    for name in _nearest(listed, folders):
        path = root / name
        if path.is_symlink() or not path.is_file() or total + path.stat().st_size > MOST_WRITTEN_BYTES:
            continue
        try:
            content = bounded_bytes(path, MOST_FILE_BYTES)
        except NotResolved:  # too large, or gone meanwhile
            continue
        _write(to / name, content)
        total += len(content)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except (OSError, ValueError):
        return  # a name this file system cannot hold, or of a folder that is a file: then it is not there


def _lines(objects: Mapping[str, str], names: Iterable[str]) -> bytes:
    return "".join(f"{objects[name]}\n" for name in names).encode()


def _tree(root: Path, revision: str) -> dict[str, str]:
    """Objects of plain files by name."""
    found = {}
    for line in _names(_git(root, "ls-tree", "-r", "-z", "--full-tree", revision)):
        mode, _, rest = line.partition(" ")
        kind_and_object, _, name = rest.partition("\t")
        if mode in ("100644", "100755"):
            found[name] = kind_and_object.split()[1]
    return found


def _staged(root: Path) -> dict[str, str]:
    found = {}
    for line in _names(_git(root, "ls-files", "-s", "-z")):
        told, _, name = line.partition("\t")
        mode, object_name, stage = told.split()
        if mode in ("100644", "100755") and stage == "0":
            found[name] = object_name
    return found


def _raw(told: bytes) -> Iterator[ChangedPath]:
    """`:100644 100644 HASH HASH M\\0name\\0`; of a rename, `R086\\0old\\0new\\0`."""
    words = _names(told)
    while words:
        _, new_mode, *_, status = words.pop(0).split(" ")
        first = words.pop(0)
        second = words.pop(0) if status[:1] in "RC" else first
        gone = status[:1] == "D" or new_mode in ("120000", "160000")
        yield ChangedPath(None if status[:1] in "AC" else first, None if gone else second)


def _names(told: bytes) -> list[str]:
    return [os.fsdecode(name) for name in told.split(b"\0") if name]


def _inside(root: Path, paths: Iterable[str]) -> Iterator[str]:
    for given in paths:
        name = os.path.relpath(os.path.abspath(given), root)
        if name.split(os.sep)[0] == os.pardir:
            raise UsageError(f"{shown(given)}: not in the repository {root}", field="PATH")
        yield name


def _last_commit(root: Path) -> str:
    """Of a repository without one, the tree that holds nothing."""
    try:
        return _commit(root, "HEAD")
    except NotResolved:
        return _git(root, "hash-object", "-t", "tree", "--stdin").decode().strip()


def _commit(root: Path, revision: str) -> str:
    if not revision or revision.startswith("-") or len(revision) > 256:
        raise UsageError(f"got {shown(revision)}; allowed: a branch, tag or commit, or BASE...HEAD", field="BASE")
    try:
        found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except NotResolved:
        raise NotResolved(
            f"{shown(revision)}: no commit of that name is here. To fix: git fetch; in CI also with the history "
            "(fetch-depth: 0 of actions/checkout)",
            field="BASE",
        ) from None
    return found.decode().strip()


def _fork(root: Path, base: str, head: str) -> str:
    try:
        return _git(root, "merge-base", base, head).decode().split()[0]
    except NotResolved:
        raise NotResolved(
            "no commit in common is here. To fix: git fetch --unshallow; or compare the two as they are: BASE..HEAD",
            field="BASE",
        ) from None


def _git(folder: Path, *words: str, given: bytes = b"") -> bytes:
    settings = [word for setting in SETTINGS for word in ("-c", setting)]
    command = ["git", "--no-pager", "--literal-pathspecs", "-C", str(folder), *settings, *words]
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, timeout=GIT_S, env={**os.environ, **ENVIRONMENT}
        )
    except FileNotFoundError:
        raise NotResolved("git is not installed, or not on the PATH") from None
    except subprocess.TimeoutExpired:
        raise NotResolved(f"git {words[0]} took longer than {GIT_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise NotResolved(f"git {words[0]}: {lines[0] if lines else f'ended with {done.returncode}'}")
    return done.stdout
