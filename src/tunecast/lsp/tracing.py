"""`tunecast trace --json` of a script, in the background, until it is done or nobody wants it any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tunecast.lsp.answerer import NotAnswered
from tunecast.web.workers.pool import python_environment

EVERY_S = 1.0
"""Between two reports of how long it has taken."""
PATIENCE_S = 5.0
"""To end what it started."""
FAILED = 5
"""Exit code of what could not be traced; 0 and 3 are answers."""


def trace_words(path: Path, flags: Sequence[str], *, json: bool = False) -> list[str]:
    return ["tunecast", "trace", *(["--json"] if json else []), *flags, "--", str(path)]


async def trace_of(path: Path, flags: Sequence[str], passed: Callable[[float], None]) -> dict[str, Any]:
    """What it prints. Raises `NotAnswered`; ends the trace where it is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *trace_words(path, flags, json=True)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=path.parent,
        env=python_environment(),
        start_new_session=True,
    )
    counting = asyncio.ensure_future(_count(passed))
    try:
        told, said = await process.communicate()
    except asyncio.CancelledError:
        await end(process)
        raise
    finally:
        counting.cancel()
    if process.returncode not in (0, 3, FAILED) or not told.strip():
        raise NotAnswered(last_line(said), expected=True)
    found: dict[str, Any] = json.loads(told)
    return found


async def _count(passed: Callable[[float], None]) -> None:
    began_s = asyncio.get_running_loop().time()
    while True:
        passed(asyncio.get_running_loop().time() - began_s)
        await asyncio.sleep(EVERY_S)


async def end(process: asyncio.subprocess.Process) -> None:
    """With all it started: it has a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def last_line(said: bytes) -> str:
    lines = [line for line in said.decode("utf-8", "replace").replace("\r", "\n").split("\n") if line.strip()]
    ours = [line for line in lines if line.startswith("tunecast: ")]
    return (ours or lines or ["tunecast trace ended without an answer"])[-1].removeprefix("tunecast: ")[:2000]
