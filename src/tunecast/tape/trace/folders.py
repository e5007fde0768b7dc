"""The temporary folder of a traced run: removed at its end, or at the beginning of a later run where it had no end.

Who uses a folder holds a lock on it, which the kernel gives back however a process ends.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "tunecast-trace-"
YOUNGEST_S = 60.0
"""A folder has no lock yet in the moment it is made."""


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    remove_what_was_left()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with _lock(str(folder)):
            yield folder
    finally:
        remove(folder)


def remove_what_was_left() -> None:
    """Folders of runs that were killed together with tunecast, or ended with the machine."""
    for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > YOUNGEST_S:
                with _lock(path):
                    remove(Path(path))


@contextlib.contextmanager
def _lock(folder: str) -> Iterator[None]:
    """BlockingIOError where another process has it."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Also what a script made unreadable for its own user, or nested too deeply for Python. No link is followed."""
    folders = [] if os.path.islink(folder) else [str(folder)]
    while folders:
        with contextlib.suppress(OSError):
            path = folders.pop()
            os.chmod(path, 0o700)
            with os.scandir(path) as entries:
                folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        with contextlib.suppress(OSError):
            subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)
