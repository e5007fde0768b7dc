"""A traced script changes nothing outside its own temporary folder, reaches no network and starts no programs that do.

Writes are led into the folder (`overlay.py`); what would still leave it is refused by an audit hook, which sees
Writes are led into the folder (`overlay.py`); what would still leave it is refused by an audit hook, which sees
every file, process and socket Python code asks for, and by the kernel (`kernel/`), which sees the rest. Refusals
are `OSError`s, which programs expect of disks and networks, and each is listed in the answer. Tools that only read are
started, `nvidia-smi` is one of our own, and a forked process is held by all this too (`processes.py`).
"""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import shlex
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tunecast.tape.trace import nvidia_smi
from tunecast.tape.trace.guard import end_with
from tunecast.tape.trace.kernel.restrict import DEVICES, Refusals, restrict
from tunecast.tape.trace.overlay import WRITING_FLAGS, Overlay, real_path
from tunecast.tape.trace.overlay import install as lay_over_the_disk
from tunecast.tape.trace.places import place_of_caller
from tunecast.tape.trace.programs import named_programs, only_reads, program_path, stages_of
from tunecast.tape.trace.secrets import without_secrets
from tunecast.units import GIB

MODULES = "HF_MODULES_CACHE"
MOST_SHOWN = 200
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::", ""})
STREAMS = ("/dev/fd/", "/dev/stdout", "/dev/stderr", "/proc/self/fd/")
SHARED_MEMORY_BYTES = 4 * GIB
QUIET = {
    "WANDB_MODE": "disabled", "COMET_MODE": "DISABLED", "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "GIT_OPTIONAL_LOCKS": "0",
}  # fmt: skip
"""Trackers off, telemetry off, and git told not to refresh its index while looking."""
OWN_CACHES = (MODULES, "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR")
"""Caches of code, imported or mapped by their path: they get folders of their own rather than a twin."""


class Sandbox:
    """One for the process: neither hooks nor the kernel's rules can be taken off again."""

    def __init__(self, folder: Path) -> None:
        self.overlay = Overlay(folder)
        self.refused: Counter[str] = Counter()
        self.refusals = Refusals()
        self.programs = named_programs()
        self.cards: Callable[[], list[dict[str, Any]]] = list
        """What `nvidia-smi` tells of them now."""
        self._process = os.getpid()
        self._of_forks = os.path.join(self.overlay.home, "refused-in-forks.txt")

    def restrict(self) -> None:
        """What the kernel refuses from now on, as early as can be."""
        os.environ.update(QUIET)
        copy_modules(os.path.join(self.overlay.home, MODULES.lower()))
        for name in OWN_CACHES:
            os.environ[name] = os.path.join(self.overlay.home, name.lower())
        self._install_nvidia_smi()
        guard = os.getppid()
        self.refusals = restrict(self.overlay.home, sorted(set(self.programs.values())), SHARED_MEMORY_BYTES)
        end_with(guard)

    def enter(self) -> None:
        """What Python is led elsewhere with, or refused, once the tracer itself is loaded."""
        lay_over_the_disk(self.overlay)
        answers: dict[str, Callable[..., None]] = {
            "open": self._on_open, "os.mkdir": self._on_change, "os.remove": self._on_change,
            "os.rmdir": self._on_change, "os.truncate": self._on_truncate, "os.rename": self._on_move,
            "os.link": self._on_move, "os.symlink": self._on_move, "sqlite3.connect": self._on_database,
            "subprocess.Popen": self._on_program, "os.posix_spawn": self._on_spawn, "os.exec": self._on_exec,
            "os.spawn": self._on_spawnv, "os.system": self._on_command, "os.forkpty": self._on_python,
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

    def note_of_fork(self, told: str) -> None:
        """A forked process tells what it was refused through a file; what it counts stays with it."""
        with open(self._of_forks, "a") as file:
            file.write(f"{told}\n")

    # ------------------------------------------------------------------ files

    def _refuse(self, what: str, why: str) -> None:
        self.refused[what] += 1
        if os.getpid() != self._process:
            self.note_of_fork(what)
        raise PermissionError(f"{what}: {why}")

    def _require_inside(self, path: Any, *, itself: bool = False) -> None:
        """By where it leads, since a link inside may lead out; with `itself` a link is what is meant."""
        if isinstance(path, int):
            return
        absolute = os.path.abspath(os.fsdecode(path))
        if absolute in DEVICES or absolute.startswith(STREAMS):
            return
        if not self.overlay.is_inside(real_path(os.path.dirname(absolute) + "/." if itself else absolute)):
            self._refuse(f"writing {absolute} was refused", "a traced script changes no files of yours")

    def _on_open(self, path: Any, mode: Any, flags: Any) -> None:
        writes = isinstance(flags, int) and flags & WRITING_FLAGS
        if writes and path is not None and not getattr(self.overlay.thread, "through_opener", False):
            self._require_inside(path)

    def _on_truncate(self, path: Any, *rest: Any) -> None:
        self._require_inside(path)

    def _on_change(self, path: Any, *rest: Any) -> None:
        self._require_inside(path, itself=True)

    def _on_move(self, source: Any, target: Any, *rest: Any) -> None:
        self._require_inside(target, itself=True)

    def _on_database(self, path: Any) -> None:
        if os.fsdecode(path) != ":memory:":
            self._require_inside(path)

    # ------------------------------------------------------------------ programs

    def _install_nvidia_smi(self) -> None:
        """First on PATH; what it answers is written when it is started."""
        folder = os.path.join(self.overlay.home, "bin")
        os.makedirs(folder)
        program, self._told = os.path.join(folder, "nvidia-smi"), os.path.join(folder, "told.txt")
        Path(program).write_text(f"#!/bin/sh\nexec {shlex.join(('/bin/cat', self._told))}\n")
        os.chmod(program, 0o755)
        self.programs["nvidia-smi"] = os.path.realpath(program)
        os.environ["PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PATH"))))

    def _is_named(self, words: Sequence[str], folder: Any, environment: Any, program: str | None = None) -> bool:
        """Whether a command starts a tool that reads, by its real path; of `nvidia-smi` the answer is written then."""
        if not words or not only_reads(words):
            return False
        name = os.path.basename(words[0])
        if program_path(program or words[0], folder, environment) != self.programs.get(name):
            return False
        if name == "nvidia-smi":
            Path(self._told).write_text(f"{nvidia_smi.answer(list(words[1:]), self.cards())}\n")
        return True

    def _on_program(self, program: Any, args: Any, folder: Any = None, environment: Any = None) -> None:
        words = [os.fsdecode(a) for a in args] if isinstance(args, (list, tuple)) else shlex.split(os.fsdecode(args))
        started = os.fsdecode(program)
        is_shell = program_path(started, folder, environment) == self.programs.get("sh")
        if is_shell and words[1:2] == ["-c"] and len(words) == 3:
            self._on_command(words[2], folder, environment)
        elif self._is_named(words, folder, environment, started):
            return
        elif os.path.basename(words[0] if words else "").startswith("python"):
            self._on_python(shlex.join(without_secrets(words)))
        else:
            self._refuse_program("starting", words)

    def _on_spawn(self, program: Any, args: Any, environment: Any) -> None:
        self._on_program(program, args, None, environment)

    def _on_spawnv(self, mode: Any, program: Any, args: Any, environment: Any = None) -> None:
        self._on_program(program, args, None, environment)

    def _on_exec(self, program: Any, args: Any, environment: Any) -> None:
        self._refuse_program("becoming", [os.fsdecode(a) for a in args])

    def _on_command(self, command: Any, folder: Any = None, environment: Any = None) -> None:
        text = os.fsdecode(command)
        stages = stages_of(text)
        if not stages or not all(self._is_named(words, folder, environment) for words in stages):
            self._refuse_program("running", text.split())

    def _on_python(self, command: str = "") -> None:
        what = "starting a second Python process was refused"
        self._refuse(_at_own_line(what), f"nothing would hold it here{f': {command[:MOST_SHOWN]}' if command else ''}. "
                     "To fix: run it before tracing, or fork it (multiprocessing)")  # fmt: skip

    def _refuse_program(self, what: str, words: Sequence[str]) -> None:
        told = shlex.join(without_secrets(words))[:MOST_SHOWN]
        self._refuse(_at_own_line(f"{what} {told!r} was refused"), "only tools that read are started while tracing")

    # ------------------------------------------------------------------ network

    def _on_connect(self, connection: Any, address: Any) -> None:
        if address is not None:
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


def _shown(address: Any) -> str:
    return ":".join(str(part) for part in address[:2]) if isinstance(address, tuple) else str(address)
