"""An engine's own command, run here: what it printed, or its words for what went wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tunecast.errors import NotResolved
from tunecast.launching.rendering import Command

MOST_TOLD = 500


def output_of(
    command: Command, folder: Path, environment: Mapping[str, str] | None = None, *, named: str, absent: str = ""
) -> str:
    """Raises `NotResolved`, where it fails as `named`, and where it is not installed with what that means."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise NotResolved(f"{command[0]} is not on the PATH{absent}", field="on") from None
    if done.returncode:
        told = " ".join(done.stderr.split())[:MOST_TOLD] or f"exit code {done.returncode}"
        raise NotResolved(f"{named}: {told}", field="on")
    return done.stdout
