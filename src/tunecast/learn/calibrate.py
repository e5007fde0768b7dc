"""Measure this machine's card in a process of its own, with the Python that has torch."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved
from tunecast.prediction.time.calibration import SCHEMA
from tunecast.tape.trace.interpreter import tracing_python

PROGRAM = Path(__file__).parent / "measure.py"
START_S = 60.0
"""For torch to load and the card to wake, beyond what measuring may take."""
MOST_BYTES = 1 << 20


def python_with_torch(given: str | None) -> str:
    try:
        return tracing_python(given)
    except NotResolved as error:
        if given is not None:
            raise
        told = "measuring a card needs torch, and neither this Python nor the active environment has it"
        raise NotResolved(f"{told}. To fix: --python /path/to/your/training/environment/bin/python") from error


def measure_card(python: str | None, seconds: float, device: str = "cuda") -> dict[str, Any]:
    """What `measure.py` found. Its progress goes to stderr as it comes."""
    command = [python_with_torch(python), str(PROGRAM), "--seconds", str(seconds), "--device", device]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sys.stderr, timeout=seconds + START_S
        )
    except subprocess.TimeoutExpired as error:
        raise NotResolved(f"measuring took longer than {seconds + START_S:.0f} s and was stopped") from error
    try:
        if len(done.stdout) > MOST_BYTES:
            raise ValueError("too much of it")
        found = json.loads(done.stdout)
        if "error" in found:
            raise NotResolved(f"{found['error']}. To fix: run this on the machine that trains, or --python PATH")
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']!r}")
    except (ValueError, KeyError, TypeError) as error:
        told = f"measuring ended with code {done.returncode} and no result"
        raise NotResolved(f"{told}: {error}" if str(error) else told) from error
    return {**found, "measured": date.today().isoformat()}
