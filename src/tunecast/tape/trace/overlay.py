"""What a traced script writes goes into a folder of its own; what it reads shows that folder laid over the disk.

Every path outside the folder has a twin inside it (`/home/me/out/log.txt` is `FOLDER/home/me/out/log.txt`). Python's
file functions all end in a dozen functions of `os` and in `open`; those are replaced. A file that is changed rather
than written anew is copied first, one that is deleted is only remembered as deleted. What C code opens by itself
does not come by here: `kernel/` refuses it, and the packages known to do so are corrected one by one.
"""

from __future__ import annotations

import _io
import builtins
import errno
import io
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WRITING_MODES = frozenset("wax+")
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FREE_FOLDERS = ("/dev", "/proc", "/sys")
"""Devices and the like are no files to lay anything over: what may be written there the sandbox says."""
SHARED_MEMORY = "/dev/shm"
READERS = ("stat", "lstat", "access", "readlink", "statvfs", "pathconf", "listxattr", "getxattr")
"""Functions of `os` that only look at a path."""
TOUCHERS = (
    "chmod", "fchmod", "lchmod", "chown", "fchown", "lchown", "utime", "setxattr", "removexattr", "chflags", "lchflags",
)  # fmt: skip
"""Those that change what a file is rather than what it holds."""
MOST_LINKS = 40

_stat, _lstat, _mkdir, _open, _os_open = os.stat, os.lstat, os.mkdir, io.open, os.open
_remove, _rmdir, _rename, _listdir, _scandir = os.remove, os.rmdir, os.rename, os.listdir, os.scandir
_truncate, _readlink, _chdir, _getcwd, _link, _symlink = (
    os.truncate, os.readlink, os.chdir, os.getcwd, os.link, os.symlink,
)  # fmt: skip


class Overlay:
    """The files of one traced run. Paths are absolute strings; `twin` is a path's place in the folder."""

    def __init__(self, folder: Path) -> None:
        self.home = os.path.realpath(folder)
        self.root = os.path.join(self.home, "files")
        self.deleted: set[str] = set()
        self.thread = threading.local()
        """`through_opener` is set while `open` only names a path and its opener opens another."""
        _makedirs(self.root)

    # ------------------------------------------------------------------ where things are

    def is_free(self, path: str) -> bool:
        """Written where it stands: inside the run's own folder, or nowhere that stays."""
        return any(path == top or path.startswith(top + "/") for top in (self.home, *FREE_FOLDERS))

    def is_inside(self, path: str) -> bool:
        """Of the run's own folder, or in memory that is the run's own."""
        return any(path == top or path.startswith(top + "/") for top in (self.home, SHARED_MEMORY))

    def twin(self, path: str) -> str:
        return self.root + path

    def absolute(self, path: Any, dir_fd: int | None = None) -> str:
        text = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(text):
            text = os.path.join(_readlink(f"/proc/self/fd/{dir_fd}"), text)
        return self.outside(os.path.abspath(text))

    def outside(self, path: str) -> str:
        """Of a twin the path it stands for."""
        return path[len(self.root) :] if path.startswith(self.root + "/") else path

    def to_read(self, path: str) -> str:
        if self.is_free(path):
            return path
        return self.twin(path) if _exists(self.twin(path)) or self._is_deleted(path) else path

    def to_write(self, path: str, *, keep: bool) -> str:
        """Where to write `path`; with `keep` its present content is there already."""
        if self.is_free(path):
            return path
        twin = self.twin(path)
        if os.path.islink(twin):
            target = self.outside(real_path(twin))
            if target != path and not self.is_free(target):  # a link to a file of the disk
                return self.to_write(target, keep=keep)
        parent = os.path.dirname(path)
        if self._is_folder(parent):
            _makedirs(self.twin(parent))
        if keep and not _exists(twin) and _exists(path) and not self._is_deleted(path):
            _copy(path, twin)
        return twin

    def exists(self, path: str) -> bool:
        return _exists(self.to_read(path))

    def _is_folder(self, path: str) -> bool:
        return _is_folder(self.to_read(path))

    def _is_deleted(self, path: str) -> bool:
        if not self.deleted:
            return False
        return any(path == gone or path.startswith(gone + "/") for gone in self.deleted)

    # ------------------------------------------------------------------ changes

    def make_folder(self, path: str, mode: int) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        _mkdir(self.to_write(path, keep=False), mode)

    def delete(self, path: str, remove: Callable[[str], None]) -> None:
        if self.is_free(path):
            return remove(path)
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if remove is _rmdir and self.names_in(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if _exists(self.twin(path)):
            remove(self.twin(path))
        if _exists(path):
            self.deleted.add(path)

    def move(self, source: str, target: str) -> None:
        if not self.exists(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        held = self.to_read(source)
        place = self.to_write(target, keep=False)
        if held == source and not self.is_free(source):  # only on the disk: the disk keeps it
            _copy(source, place)
            self.deleted.add(source)
        else:
            _rename(held, place)
            if not self.is_free(source) and _exists(source):
                self.deleted.add(source)

    def names_in(self, path: str) -> list[str]:
        return [name for name, _ in self.entries(path)]

    def entries(self, path: str) -> Iterator[tuple[str, str]]:
        """Name and folder it really lies in, of everything seen in `path`."""
        twin = self.twin(path)
        if self.is_free(path) or not _is_folder(twin):
            folders = [self.to_read(path)]
        else:
            folders = [twin] if self._is_deleted(path) or not _exists(path) else [twin, path]
        seen: set[str] = set()
        for folder in folders:
            for name in _listdir(folder):
                hidden = folder == path and self._is_deleted(os.path.join(path, name))
                if name not in seen and not hidden:
                    seen.add(name)
                    yield name, folder


class OverlayListing:
    """What `os.scandir` returns: an iterator that is also a context."""

    def __init__(self, entries: list[os.DirEntry[Any]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> OverlayListing:
        return self

    def __next__(self) -> os.DirEntry[Any]:
        return next(self._entries)

    def __enter__(self) -> OverlayListing:
        return self

    def __exit__(self, *exception: object) -> None: ...
    def close(self) -> None: ...


class FileFunctions:
    """The functions of `os` and the built-in `open` as the traced script sees them."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        overlay = self._overlay
        if kwargs.get("opener", args[5] if len(args) > 5 else None) is not None:
            overlay.thread.through_opener = True  # tempfile names a folder and opens a file in it, with os.open
            try:
                return _open(file, mode, *args, **kwargs)
            finally:
                overlay.thread.through_opener = False
        if isinstance(file, int):
            return _open(file, mode, *args, **kwargs)
        path = overlay.absolute(file)
        if not WRITING_MODES & set(mode):
            return _open(_as_given(file, path, overlay.to_read(path)), mode, *args, **kwargs)
        if "x" in mode and overlay.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if "r" in mode and not overlay.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _open(overlay.to_write(path, keep="w" not in mode), mode, *args, **kwargs)

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        absolute = self._overlay.absolute(path, dir_fd)
        if not flags & WRITING_FLAGS:
            return _os_open(_as_given(path, absolute, self._overlay.to_read(absolute)), flags, mode)
        if flags & os.O_CREAT and flags & os.O_EXCL and self._overlay.exists(absolute):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), absolute)
        return _os_open(self._overlay.to_write(absolute, keep=not flags & os.O_TRUNC), flags, mode)

    def listdir(self, path: Any = ".") -> list[Any]:
        if path is None or isinstance(path, int):
            return _listdir(path)
        names = self._overlay.names_in(self._overlay.absolute(path))
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def scandir(self, path: Any = ".") -> Any:
        overlay = self._overlay
        if path is None or isinstance(path, int):
            return _scandir(path)
        absolute = overlay.absolute(path)
        if overlay.is_free(absolute) or not (overlay.deleted or _is_folder(overlay.twin(absolute))):
            return _scandir(path)
        wanted = set(overlay.entries(absolute))
        folders = sorted({folder for _, folder in wanted})
        entries = [entry for folder in folders for entry in _scandir(folder) if (entry.name, folder) in wanted]
        return OverlayListing(entries)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._overlay.make_folder(self._overlay.absolute(path, dir_fd), mode)

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._overlay.delete(self._overlay.absolute(path, dir_fd), _remove)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._overlay.delete(self._overlay.absolute(path, dir_fd), _rmdir)

    def move(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        self._overlay.move(self._overlay.absolute(src, src_dir_fd), self._overlay.absolute(dst, dst_dir_fd))

    def truncate(self, path: Any, length: int) -> None:
        place = path if isinstance(path, int) else self._overlay.to_write(self._overlay.absolute(path), keep=True)
        _truncate(place, length)

    def chdir(self, path: Any) -> None:
        """Into the disk's own folder where there is one, so that relative paths find the user's files."""
        if isinstance(path, int):
            return _chdir(path)
        absolute = self._overlay.absolute(path)
        if self._overlay.is_free(absolute) or (_exists(absolute) and self._overlay.exists(absolute)):
            return _chdir(absolute)
        return _chdir(self._overlay.to_read(absolute))

    def getcwd(self) -> str:
        return self._overlay.outside(_getcwd())

    def getcwdb(self) -> bytes:
        return os.fsencode(self.getcwd())

    def reader(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that only looks at a path."""

        def read(path: Any = ".", *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            if isinstance(path, int):
                return function(path, *args, **kwargs)
            absolute = self._overlay.absolute(path, dir_fd)
            return function(_as_given(path, absolute, self._overlay.to_read(absolute)), *args, **kwargs)

        return read

    def link(self, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        """Of a file of the disk a copy: what is written through a second name would be written to the first."""
        overlay = self._overlay
        source, place = overlay.absolute(src), overlay.to_write(overlay.absolute(dst), keep=False)
        if overlay.exists(overlay.absolute(dst)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), overlay.absolute(dst))
        held = overlay.to_read(source)
        if overlay.is_inside(held):
            _link(held, place)
        else:
            _copy(held, place)

    def symlink(self, src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        overlay = self._overlay
        target = overlay.absolute(dst)
        source = overlay.absolute(os.path.join(os.path.dirname(target), os.fsdecode(src)))
        if overlay.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        _symlink(overlay.to_read(source), overlay.to_write(target, keep=False))

    def toucher(self, change: Callable[..., None]) -> Callable[..., None]:
        """Times, owners and permissions: of what the script wrote; those of the disk stay as they are."""

        def touch(path: Any, *args: Any, **kwargs: Any) -> None:
            by_number = isinstance(path, int)
            absolute = "" if by_number else self._overlay.absolute(path, kwargs.pop("dir_fd", None))
            place = _readlink(f"/proc/self/fd/{path}") if by_number else self._overlay.to_read(absolute)
            if self._overlay.is_inside(place):
                change(path if by_number else place, *args, **kwargs)

        return touch

    def of_os(self) -> dict[str, Callable[..., Any]]:
        """By their names in `os`."""
        return {
            "open": self.os_open, "mkdir": self.mkdir, "remove": self.remove, "unlink": self.remove,
            "rmdir": self.rmdir, "rename": self.move, "replace": self.move, "listdir": self.listdir,
            "scandir": self.scandir, "truncate": self.truncate, "link": self.link, "symlink": self.symlink,
            "chdir": self.chdir, "getcwd": self.getcwd, "getcwdb": self.getcwdb,
            **{name: self.reader(getattr(os, name)) for name in READERS if hasattr(os, name)},
            **{name: self.toucher(getattr(os, name)) for name in TOUCHERS if hasattr(os, name)},
        }  # fmt: skip


def install(overlay: Overlay) -> None:
    """For the rest of this process."""
    functions = FileFunctions(overlay)
    for name, function in functions.of_os().items():
        setattr(os, name, function)
    builtins.open = io.open = _io.open = functions.open
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # deletes by path, as the functions above know it


def _as_given(path: Any, absolute: str, place: str) -> Any:
    """The path as the caller wrote it, unless it lies elsewhere: error messages stay what they would be."""
    return path if place == absolute and (os.path.isabs(path) or os.getcwd() == _getcwd()) else place


def real_path(path: str) -> str:
    """Where an absolute path leads on the disk itself, past every link; what is not there stays as it is."""
    found, left, links = "", path.split("/")[::-1], 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        if name == "..":
            found = os.path.dirname(found)
            continue
        try:
            target = _readlink(f"{found}/{name}") if links < MOST_LINKS else ""
        except (OSError, ValueError):
            target = ""
        if not target:
            found += f"/{name}"
            continue
        links += 1
        found = "" if target.startswith("/") else found
        left += target.split("/")[::-1]
    return found or "/"


def _exists(path: str) -> bool:
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(_stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _copy(source: str, target: str) -> None:
    if _is_folder(source):
        _makedirs(target)
        for name in _listdir(source):
            _copy(os.path.join(source, name), os.path.join(target, name))
        return
    with _open(source, "rb") as old, _open(target, "wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)


def _makedirs(path: str) -> None:
    if not _exists(path):
        _makedirs(os.path.dirname(path))
        _mkdir(path)
