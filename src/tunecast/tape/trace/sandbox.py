"""A traced script changes nothing outside its own temporary folder, reaches no network and starts no programs.

Writes are led into the folder (`overlay.py`); what would still leave it is refused by an audit hook, which sees
every file, process and socket Python code asks for, and by the kernel (`landlock.py`), which sees the rest. Refusals
are `OSError`s, which programs expect of disks and networks, and each is listed in the answer.
"""

from __future__ import annotations

import multiprocessing.util
import os
import shlex
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tunecast.tape.trace import landlock
from tunecast.tape.trace.overlay import WRITING_FLAGS, Overlay
from tunecast.tape.trace.overlay import install as lay_over_the_disk

READING_PROGRAMS = frozenset({
    "nvidia-smi", "uname", "hostname", "lscpu", "lsb_release", "ldconfig", "getconf", "id", "whoami", "which", "file",
    "cat", "ls", "df", "free", "nvcc",
})  # fmt: skip
"""Tools that only tell something; libraries ask them about the machine."""
READING_GIT = frozenset({
    "rev-parse", "log", "status", "describe", "diff", "show", "ls-files", "rev-list", "cat-file", "--version",
    "version", "config --get", "config --list", "branch --show-current", "remote -v", "remote get-url",
})  # fmt: skip
GIT_OPTIONS_WITH_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree"})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::", ""})
QUIET = {
    "WANDB_MODE": "disabled", "COMET_MODE": "DISABLED", "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "GIT_OPTIONAL_LOCKS": "0",
}  # fmt: skip
"""Trackers off, telemetry off, and git told not to refresh its index while looking."""
OWN_CACHES = ("HF_MODULES_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR")
"""Caches of code, imported or mapped by their path: they get folders of their own rather than a twin."""


class Sandbox:
    """One for the process: neither hooks nor the kernel's rules can be taken off again."""

    def __init__(self, folder: Path) -> None:
        self.overlay = Overlay(folder)
        self.refused: Counter[str] = Counter()
        self.kernel_guards = False

    def enter(self) -> None:
        os.environ.update(QUIET)
        for name in OWN_CACHES:
            os.environ[name] = os.path.join(self.overlay.home, name.lower())
        lay_over_the_disk(self.overlay)
        self.kernel_guards = landlock.refuse_writes_outside((self.overlay.home, "/dev", "/proc"))
        answers: dict[str, Callable[..., None]] = {
            "open": self._on_open, "os.mkdir": self._on_change, "os.remove": self._on_change,
            "os.rmdir": self._on_change, "os.truncate": self._on_change, "os.rename": self._on_move,
            "os.link": self._on_move, "os.symlink": self._on_move, "sqlite3.connect": self._on_database,
            "subprocess.Popen": self._on_program, "os.posix_spawn": self._on_program, "os.exec": self._on_program,
            "os.spawn": self._on_spawn, "os.system": self._on_command, "os.fork": self._on_fork,
            "os.forkpty": self._on_fork, "socket.connect": self._on_connect, "socket.sendto": self._on_connect,
            "socket.sendmsg": self._on_connect, "socket.getaddrinfo": self._on_lookup,
            "socket.gethostbyname": self._on_lookup,
        }  # fmt: skip

        vars(multiprocessing.util)["spawnv_passfds"] = self._on_fork  # raises no audit event

        def hook(event: str, args: tuple[Any, ...]) -> None:
            answer = answers.get(event)
            if answer is not None:
                answer(*args)

        sys.addaudithook(hook)

    def sentences(self) -> tuple[str, ...]:
        return tuple(f"{text} ({count} times)" if count > 1 else text for text, count in self.refused.items())

    # ------------------------------------------------------------------ files

    def _refuse(self, what: str, why: str) -> None:
        self.refused[what] += 1
        raise PermissionError(f"{what}: {why}")

    def _require_inside(self, path: Any) -> None:
        if isinstance(path, int):
            return
        absolute = os.path.abspath(os.fsdecode(path))
        if not self.overlay.is_free(absolute) and not self.overlay.is_free(os.path.realpath(absolute)):
            self._refuse(f"writing {absolute} was refused", "a traced script changes no files of yours")

    def _on_open(self, path: Any, mode: Any, flags: Any) -> None:
        writes = isinstance(flags, int) and flags & WRITING_FLAGS
        if writes and path is not None and not getattr(self.overlay.thread, "through_opener", False):
            self._require_inside(path)

    def _on_change(self, path: Any, *rest: Any) -> None:
        self._require_inside(path)

    def _on_move(self, source: Any, target: Any, *rest: Any) -> None:
        self._require_inside(target)

    def _on_database(self, path: Any) -> None:
        if os.fsdecode(path) != ":memory:":
            self._require_inside(path)

    # ------------------------------------------------------------------ programs

    def _on_program(self, program: Any, args: Any, *rest: Any) -> None:
        words = [os.fsdecode(a) for a in args] if isinstance(args, (list, tuple)) else shlex.split(os.fsdecode(args))
        if words and words[0] in ("/bin/sh", "sh") and words[1:2] == ["-c"]:
            self._on_command(" ".join(words[2:]))
        elif not only_reads(words):
            self._refuse(f"starting {shlex.join(words)[:200]!r} was refused", "only tools that read are started")

    def _on_spawn(self, mode: Any, program: Any, args: Any, *rest: Any) -> None:
        self._on_program(program, args)

    def _on_command(self, command: Any) -> None:
        text = os.fsdecode(command)
        plain = not set(text) & set(";|&<>$`\n")
        if not plain or not only_reads(shlex.split(text)):
            self._refuse(f"running {text[:200]!r} was refused", "only tools that read are started")

    def _on_fork(self, *rest: Any) -> None:
        self._refuse("starting a second Python process was refused", "what runs there could not be traced")

    # ------------------------------------------------------------------ network

    def _on_connect(self, connection: Any, address: Any) -> None:
        if getattr(connection, "family", None) != getattr(socket, "AF_UNIX", None):
            self._refuse(f"connecting to {_shown(address)} was refused", "tracing uses no network")

    def _on_lookup(self, host: Any, *rest: Any) -> None:
        name = "" if host is None else os.fsdecode(host) if isinstance(host, (str, bytes)) else str(host)
        if name not in LOOPBACK and name != socket.gethostname():
            self._refuse(f"looking up {name} was refused", "tracing uses no network")


def only_reads(words: Sequence[str]) -> bool:
    """`git status` does, `git commit` does not; nor does anything that is not known."""
    if not words:
        return False
    name = os.path.basename(words[0])
    if name != "git":
        return name in READING_PROGRAMS
    rest = list(words[1:])
    while rest and rest[0] in GIT_OPTIONS_WITH_VALUE:
        del rest[:2]
    return bool({" ".join(rest[:1]), " ".join(rest[:2])} & READING_GIT)


def _shown(address: Any) -> str:
    return ":".join(str(part) for part in address[:2]) if isinstance(address, tuple) else str(address)
