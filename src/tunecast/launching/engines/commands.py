"""An engine's own command, run here: what it printed, or its words for what went wrong."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tunecast.errors import NotResolved
from tunecast.launching.ledger import NotKnown
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
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            pass_fds=() if lock is None else (lock,),
        )
    except FileNotFoundError:
        raise NotResolved(f"{command[0]} is not on the PATH{absent}", field="on") from None
    if done.returncode:
        told = " ".join(done.stderr.split())[:MOST_TOLD] or f"exit code {done.returncode}"
        raise NotResolved(f"{named}: {told}", field="on")
    return done.stdout


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
