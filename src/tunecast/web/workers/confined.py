"""What a worker process may touch of its machine: the package, Python itself, its own folder, and no network.

A job or an uploaded file may name a path or a model elsewhere. Requests that do are refused before they get here
(asking/jobs.py); this is the second lock, for what a trainer's file names (an accelerate or DeepSpeed configuration, a
data set) and whatever the first one forgot. To the code above, a path outside is one that is not there.

Python's audit events cannot be switched off once they are watched, and opening, listing and connecting raise one each.
Looking whether a file exists raises none, so the functions that do are replaced as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from errno import ENOENT
from typing import Any

OPENING = frozenset({"open", "os.listdir", "os.scandir", "os.chdir", "os.walk", "glob.glob", "glob.glob/2"})
CHANGING = frozenset(
    {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown"}
)
BETWEEN = frozenset({"os.rename", "os.link", "os.symlink"})
"""Of two paths."""
CONNECTING = frozenset(
    {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind", "urllib.Request"}
)
STARTING = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn"})


class Elsewhere(FileNotFoundError):
    """A path that this process may not see."""


def confine(folder: str, more: Iterable[str] = (), *, network: bool = False) -> None:
    """For the rest of this process. `folder`: its own, the only one it may change; `more`: others it may read."""
    lstat, readlink = os.lstat, os.readlink
    own = (_real_path(os.path.abspath(folder), lstat, readlink) + os.sep,)
    others = [_real_path(os.path.abspath(each), lstat, readlink) + os.sep for each in (*_of_python(), *more)]
    readable = (*own, *others)

    def is_within(path: Any, roots: tuple[str, ...]) -> bool:
        if path is None or isinstance(path, int):  # a file that is open already
            return True
        try:
            text = os.fsdecode(path)
        except TypeError:
            return False
        return f"{_real_path(os.path.abspath(text), lstat, readlink)}{os.sep}".startswith(roots)

    def watch(event: str, values: tuple[Any, ...]) -> None:
        if event in OPENING or event in CHANGING:
            for path in values[: 2 if event in BETWEEN else 1]:
                if not is_within(path, readable if event in OPENING else own):
                    raise Elsewhere(ENOENT, os.strerror(ENOENT), str(path)[:200])
        elif event in STARTING or (event in CONNECTING and not network):
            raise PermissionError(f"{event}: not of this process")

    def within(look: Callable[..., Any]) -> Callable[..., Any]:
        def inner(path: Any, *values: Any, **named: Any) -> Any:
            if not is_within(path, readable):
                raise Elsewhere(ENOENT, os.strerror(ENOENT), str(path)[:200])
            return look(path, *values, **named)

        return inner

    for name in ("stat", "lstat", "access", "readlink"):
        setattr(os, name, within(getattr(os, name)))
    sys.addaudithook(watch)


def _of_python() -> list[str]:
    """The package, the standard library and what is installed: code that is loaded when it is needed."""
    import tunecast

    package = os.path.dirname(os.path.dirname(os.path.abspath(tunecast.__file__)))
    return [os.path.join(package, "tunecast"), *filter(os.path.isdir, {sys.prefix, sys.base_prefix, *sys.path})]


def _real_path(path: str, lstat: Callable[[str], os.stat_result], readlink: Callable[[str], str]) -> str:
    """As os.path.realpath, by functions that see everything; forty links at most, as Linux has it."""
    from stat import S_ISLNK

    for _ in range(40):
        done = ""
        for part in path.split(os.sep)[1:]:
            at = f"{done}{os.sep}{part}"
            try:
                is_link = S_ISLNK(lstat(at).st_mode)
            except (OSError, ValueError):
                return path
            if is_link:
                rest = path[len(at) :]
                path = os.path.normpath(os.path.join(done or os.sep, readlink(at)) + rest)
                break
            done = at
        else:
            return path
    return os.sep
