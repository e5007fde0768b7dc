"""An engine's own command, run here: what it printed, or its words for what went wrong."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved
from tunecast.launching.engines.start import letter_first
from tunecast.launching.ledger import LOG, LedgerEntry, NotKnown
from tunecast.launching.rendering import Command

MOST_TOLD = 500


def output_of(
    command: Command,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    named: str,
    absent: str = "",
    lock: int | None = None,
) -> str:
    """Raises `NotResolved`, where it fails as `named`, and where it is not installed with what that means. `lock`: a
    file descriptor that it holds as long as it lives (`ledger.submission`)."""
    done = run(
        command,
        absent,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        pass_fds=() if lock is None else (lock,),
    )
    if done.returncode:
        told = " ".join(done.stderr.split())[:MOST_TOLD] or f"exit code {done.returncode}"
        raise NotResolved(f"{named}: {told}", field="on")
    return done.stdout


def run(command: Command, absent: str = "", **how: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`. Raises `NotResolved` where it cannot be started."""
    try:
        return subprocess.run(command, **how)
    except OSError as error:
        if how.get("cwd") is not None and str(error.filename) == str(how["cwd"]):
            raise NotResolved(f"{error.filename}: {error.strerror}", field="id") from None
        told = "is not on the PATH" if isinstance(error, FileNotFoundError) else f"does not start: {error.strerror}"
        raise NotResolved(f"{command[0]} {told}{absent}", field="on") from None


def said_by(command: Command, folder: Path, environment: Mapping[str, str], limit_s: float) -> str:
    """What it said on stderr; '' where it failed, or did not end in time."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=limit_s,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stderr


def tail_command(entry: LedgerEntry, *, follow: bool) -> Command:
    """What shows a log that lies in the launch's folder."""
    return ("tail", "-n", "+1", *(("--follow=name", "--retry") if follow else ()), str(entry.folder / LOG))


INSTALLED_BY = {
    "sky": "pip install skypilot, and sky check",
    "dstack": "pip install dstack, and dstack server",
    "lyceum": "pip install lyceum-cli, and lyceum auth login",
}
"""Programs of rented machines: how one is here, and knows its account."""


def run_command(command: Command, entry: LedgerEntry, environment: Mapping[str, str] | None = None) -> str:
    """One of those, in the folder of a launch."""
    absent = f". To fix: {INSTALLED_BY[command[0]]}"
    return output_of(command, entry.folder, environment, named=command[0], absent=absent, lock=entry.lock)


def submit_by_name(
    entry: LedgerEntry,
    commands: tuple[Command, ...],
    environment: Mapping[str, str],
    state: Callable[[LedgerEntry], str],
) -> str:
    """The name by which an engine knows it that takes names: one that fails half-way is kept where it does."""
    submit_or_find(lambda: run_command(commands[-1], entry, environment), lambda: state(entry), commands[-1][0])
    return letter_first(entry.id)


def submit_or_find(submit: Callable[[], object], state: Callable[[], str], program: str) -> None:
    """Where submitting fails the engine may have taken the job all the same: it is asked. `NotKnown` where it does not
    answer: the launch is kept, and `tunecast jobs` asks again."""
    try:
        submit()
    except NotResolved as error:
        if shutil.which(program) is None:
            raise
        try:
            found = state()
        except NotResolved:
            told = f"{error.message}; whether it was started is not known until {program} answers"
            raise NotKnown(told, field="on") from None
        if found == "not started":
            raise
