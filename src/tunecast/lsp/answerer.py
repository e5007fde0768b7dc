"""The server's side of its worker: one question of a file at a time, and the next one ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from tunecast.units import MIB
from tunecast.web.workers import frames
from tunecast.web.workers.pool import python_environment

MOST_S = 300.0
"""On the clock, of one answer."""
STUCK_S = 5.0
"""A worker that is busy so long with what nobody wants any more is replaced."""


class NotAnswered(Exception):
    """What a worker refused; `expected`: by its rules, not by a fault."""

    def __init__(self, message: str, *, expected: bool) -> None:
        super().__init__(message)
        self.message, self.expected = message, expected


class Answerer:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._unwanted_since_s: float | None = None

    async def ask(self, question: Mapping[str, Any]) -> AsyncGenerator[tuple[str, Any]]:
        """Events as they come. Raises `NotAnswered`. Whoever stops listening ends the work."""
        self._replace_if_stuck()
        for again in (False, True):
            reader, writer = await self._connect()
            told = False
            try:
                content = json.dumps(question).encode()
                writer.write(frames.HEAD.pack(frames.QUESTION, len(content)) + content)
                await writer.drain()
                async with asyncio.timeout(MOST_S):
                    while True:
                        kind, length = frames.HEAD.unpack(await reader.readexactly(frames.HEAD.size))
                        if length > frames.MOST_FRAME_BYTES:
                            raise ConnectionError("a frame too large")
                        found = json.loads(await reader.readexactly(length))
                        told, self._unwanted_since_s = True, None
                        if kind == frames.REFUSAL:
                            raise NotAnswered(found["message"], expected=found["expected"])
                        if kind == frames.ANSWER:
                            return
                        yield found[0], found[1]
            except TimeoutError:
                self.end()
                raise NotAnswered(f"not answered within {MOST_S:g} s", expected=True) from None
            except (asyncio.IncompleteReadError, OSError):
                if told or again:  # a child that came to its limits; a worker that ends at once
                    raise NotAnswered("the process that worked on this ended: it took too much memory or time",
                                  expected=True) from None  # fmt: skip
            except (asyncio.CancelledError, GeneratorExit):
                if not told and self._unwanted_since_s is None:
                    self._unwanted_since_s = time.monotonic()
                raise
            finally:
                with contextlib.suppress(OSError, RuntimeError):
                    writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._process is None or self._process.poll() is not None or self._control is None:
            self.end()
            self._process, self._control = start_worker()
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):  # one that just ended is noticed by what is read
            socket.send_fds(self._control, [b"q"], [theirs.fileno()])
        ours.setblocking(False)
        return await asyncio.open_connection(sock=ours, limit=MIB)

    def _replace_if_stuck(self) -> None:
        since_s = self._unwanted_since_s
        if since_s is not None and time.monotonic() - since_s > STUCK_S:
            self.end()

    def start(self) -> None:
        """Before anybody asks."""
        if self._process is None:
            self._process, self._control = start_worker()

    def end(self) -> None:
        self._unwanted_since_s = None
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None


def start_worker() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tunecast.lsp.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**python_environment(), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    return process, ours
