"""A traced script changes nothing outside its own temporary folder, reaches no network and starts no programs that do.

Writes are led into the folder (`overlay.py`); what would still leave it is refused by an audit hook, which sees
every file, process and socket Python code asks for, and by the kernel (`landlock.py`), which sees the rest. Refusals
are `OSError`s, which programs expect of disks and networks, and each is listed in the answer. Tools that only read are
started, `nvidia-smi` is one of our own, and a forked process is held by all this too (`processes.py`).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.util
import os
import re
import shlex
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tunecast.tape.trace import landlock, nvidia_smi
from tunecast.tape.trace.overlay import WRITING_FLAGS, Overlay
from tunecast.tape.trace.overlay import install as lay_over_the_disk
from tunecast.tape.trace.places import place_of_caller
from tunecast.tape.trace.processes import allow_forks, is_forked
from tunecast.tape.trace.recorder import Recorder

READING_PROGRAMS = frozenset({
    "nvidia-smi", "uname", "hostname", "lscpu", "lsb_release", "ldconfig", "getconf", "id", "whoami", "which", "file",
    "cat", "ls", "df", "free", "nvcc", "grep", "egrep", "head", "tail", "cut", "wc", "tr", "uniq", "nproc", "date",
    "echo", "true", "pwd",
})  # fmt: skip
"""Tools that only tell something; libraries ask them about the machine."""
READING_GIT = frozenset({
    "rev-parse", "log", "status", "describe", "diff", "show", "ls-files", "rev-list", "cat-file", "--version",
    "version", "config --get", "config --list", "branch --show-current", "remote -v", "remote get-url",
})  # fmt: skip
GIT_OPTIONS_WITH_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree"})
MODULES = "HF_MODULES_CACHE"
MOST_SHOWN = 200
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::", ""})
QUIET = {
    "WANDB_MODE": "disabled", "COMET_MODE": "DISABLED", "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "GIT_OPTIONAL_LOCKS": "0",
}  # fmt: skip
"""Trackers off, telemetry off, and git told not to refresh its index while looking."""
OWN_CACHES = (MODULES, "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR")
"""Caches of code, imported or mapped by their path: they get folders of their own rather than a twin."""


class Sandbox:
    """One for the process: neither hooks nor the kernel's rules can be taken off again."""

    def __init__(self, folder: Path, recorder: Recorder, devices: int) -> None:
        self.overlay = Overlay(folder)
        self.refused: Counter[str] = Counter()
        self.kernel_guards = False
        self._recorder, self._devices = recorder, devices
        self._of_forks = os.path.join(self.overlay.home, "refused-in-forks.txt")

    def enter(self) -> None:
        os.environ.update(QUIET)
        copy_modules(os.path.join(self.overlay.home, MODULES.lower()))
        for name in OWN_CACHES:
            os.environ[name] = os.path.join(self.overlay.home, name.lower())
        self._install_nvidia_smi()
        allow_forks(self._note_of_fork)
        lay_over_the_disk(self.overlay)
        self.kernel_guards = landlock.refuse_writes_outside((self.overlay.home, "/dev", "/proc"))
        answers: dict[str, Callable[..., None]] = {
            "open": self._on_open, "os.mkdir": self._on_change, "os.remove": self._on_change,
            "os.rmdir": self._on_change, "os.truncate": self._on_change, "os.rename": self._on_move,
            "os.link": self._on_move, "os.symlink": self._on_move, "sqlite3.connect": self._on_database,
            "subprocess.Popen": self._on_program, "os.posix_spawn": self._on_program, "os.exec": self._on_program,
            "os.spawn": self._on_spawn, "os.system": self._on_command, "os.forkpty": self._on_python,
            "socket.connect": self._on_connect, "socket.sendto": self._on_connect, "socket.sendmsg": self._on_connect,
            "socket.getaddrinfo": self._on_lookup, "socket.gethostbyname": self._on_lookup,
        }  # fmt: skip

        spawn = multiprocessing.util.spawnv_passfds

        def spawnv_passfds(path: Any, args: Sequence[Any], *rest: Any) -> Any:  # raises no audit event
            if not any("multiprocessing.resource_tracker" in str(word) for word in args):
                self._on_python()
            return spawn(path, args, *rest)

        vars(multiprocessing.util)["spawnv_passfds"] = spawnv_passfds

        def hook(event: str, args: tuple[Any, ...]) -> None:
            answer = answers.get(event)
            if answer is not None:
                answer(*args)

        sys.addaudithook(hook)

    def sentences(self) -> tuple[str, ...]:
        refused = Counter(self.refused)
        if os.path.exists(self._of_forks):
            refused.update(Path(self._of_forks).read_text().splitlines())
        return tuple(f"{text} ({count} times)" if count > 1 else text for text, count in refused.items())

    def _note_of_fork(self, told: str) -> None:
        """A forked process tells what it was refused through a file; what it counts stays with it."""
        with open(self._of_forks, "a") as file:
            file.write(f"{told}\n")

    # ------------------------------------------------------------------ files

    def _refuse(self, what: str, why: str) -> None:
        self.refused[what] += 1
        if is_forked():
            self._note_of_fork(what)
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

    def _install_nvidia_smi(self) -> None:
        """First on PATH; what it answers is written when it is started."""
        folder = os.path.join(self.overlay.home, "bin")
        os.makedirs(folder)
        program, self._cards = os.path.join(folder, "nvidia-smi"), os.path.join(folder, "cards.json")
        words = (sys.executable, "-I", "-S", nvidia_smi.__file__, self._cards)
        Path(program).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        os.chmod(program, 0o755)
        os.environ["PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PATH"))))

    def _write_cards(self) -> None:
        card, used = self._recorder.card, self._recorder.allocated_bytes
        one = {"name": card.name, "total_bytes": card.total_bytes, "capability": ".".join(map(str, card.capability))}
        cards = [{**one, "used_bytes": 0 if index else used} for index in range(self._devices)]
        Path(self._cards).write_text(json.dumps(cards))

    def _on_program(self, program: Any, args: Any, *rest: Any) -> None:
        words = [os.fsdecode(a) for a in args] if isinstance(args, (list, tuple)) else shlex.split(os.fsdecode(args))
        if words and words[0] in ("/bin/sh", "sh") and words[1:2] == ["-c"]:
            self._on_command(" ".join(words[2:]))
        elif only_reads(words):
            self._write_cards()
        elif os.path.basename(words[0] if words else "").startswith("python"):
            self._on_python(shlex.join(words))
        else:
            self._refuse_program(f"starting {shlex.join(words)[:MOST_SHOWN]!r}")

    def _on_spawn(self, mode: Any, program: Any, args: Any, *rest: Any) -> None:
        self._on_program(program, args)

    def _on_command(self, command: Any) -> None:
        text = os.fsdecode(command)
        if not pipe_only_reads(text):
            self._refuse_program(f"running {text[:MOST_SHOWN]!r}")
        self._write_cards()

    def _on_python(self, command: str = "") -> None:
        what = "starting a second Python process was refused"
        self._refuse(_at_own_line(what), f"nothing would hold it here{f': {command[:MOST_SHOWN]}' if command else ''}. "
                     "To fix: run it before tracing, or fork it (multiprocessing)")  # fmt: skip

    def _refuse_program(self, what: str) -> None:
        self._refuse(_at_own_line(f"{what} was refused"), "only tools that read are started while tracing")

    # ------------------------------------------------------------------ network

    def _on_connect(self, connection: Any, address: Any) -> None:
        if getattr(connection, "family", None) != getattr(socket, "AF_UNIX", None):
            self._refuse(f"connecting to {_shown(address)} was refused", "tracing uses no network")

    def _on_lookup(self, host: Any, *rest: Any) -> None:
        name = "" if host is None else os.fsdecode(host) if isinstance(host, (str, bytes)) else str(host)
        if name not in LOOPBACK and name != socket.gethostname():
            self._refuse(f"looking up {name} was refused", "tracing uses no network")


def copy_modules(target: str) -> None:
    """Code that the Hub's libraries have fetched before (metrics, models' own classes); what they add stays here."""
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    source = os.environ.get(MODULES) or os.path.join(home, "modules")
    with contextlib.suppress(OSError, shutil.Error):
        if os.path.isdir(source):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.lock"))


def _at_own_line(what: str) -> str:
    place = place_of_caller()
    return f"{what} ({place})" if place else what


def pipe_only_reads(text: str) -> bool:
    """`nvidia-smi -q | grep Free`: commands that only read, joined by pipes alone."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    try:
        tokens = list(lexer)
    except ValueError:
        return False
    unquoted = re.sub(r"'[^']*'", "", text)
    if set(unquoted) & set("$`\n;&<>()") or any(set(token) <= set(";&<>()|") and token != "|" for token in tokens):
        return False
    stages: list[list[str]] = [[]]
    for token in tokens:
        if token == "|":
            stages.append([])
        else:
            stages[-1].append(token)
    return all(map(only_reads, stages))


def only_reads(words: Sequence[str]) -> bool:
    """`git status` does, `git commit` does not; nor does anything that is not known."""
    if not words:
        return False
    name = os.path.basename(words[0])
    if name == "awk":  # prints fields; its language can do more
        return not re.search(r"system|getline|[|>]", " ".join(words[1:])) and "-f" not in words
    if name != "git":
        return name in READING_PROGRAMS
    rest = list(words[1:])
    while rest and rest[0] in GIT_OPTIONS_WITH_VALUE:
        del rest[:2]
    return bool({" ".join(rest[:1]), " ".join(rest[:2])} & READING_GIT)


def _shown(address: Any) -> str:
    return ":".join(str(part) for part in address[:2]) if isinstance(address, tuple) else str(address)
