"""The journal of a run: JSON Lines, append only. What the training appends costs it a list's append; a thread writes.

{"event": "begin", "record": {...}}      the head of the record
{"event": "steps", ...}                  what came since the last line, at most one a second
{"event": "end", "record": {...}}        the whole record; missing where the program was killed
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

SCHEMA = "tunecast.run/1"
EVERY_S = 1.0
"""Between two lines, each of which is brought to the disk (fsync): a run that is killed loses no more than this."""
MOST_LINE_BYTES = 1 << 20
MOST_BYTES = 1 << 28
"""Of a journal that is read: a line a second of some 200 bytes, for two weeks."""


class Journal:
    """One process appends to it. `collect` is asked once a second, on the thread that writes, for a line or None."""

    def __init__(self, path: str, collect: Callable[[], dict[str, Any] | None] | None = None) -> None:
        self.path = path
        self._collect = collect
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._file: int | None = None
        with contextlib.suppress(OSError):  # a training is never ended by what watches it
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._go_on, name="tunecast-journal", daemon=True)

    def begin(self, head: dict[str, Any]) -> None:
        self.append(head)
        self._thread.start()

    def append(self, line: dict[str, Any]) -> None:
        """Whole or not at all: one write each."""
        if self._file is None or os.getpid() != self._process:  # a child that was forked has a journal of its own
            return
        text = json.dumps(finite(line), separators=(",", ":")) + "\n"
        with self._lock, contextlib.suppress(OSError):
            os.write(self._file, text.encode())
            os.fsync(self._file)

    def end(self, line: dict[str, Any]) -> None:
        """What is left, and the last line."""
        self._over.set()
        if os.getpid() == self._process and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5)
        self._flush()
        self.append(line)
        if self._file is not None and os.getpid() == self._process:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _go_on(self) -> None:
        while not self._over.wait(EVERY_S):
            self._flush()

    def _flush(self) -> None:
        if self._collect is not None:
            with contextlib.suppress(Exception):  # as above
                line = self._collect()
                if line is not None:
                    self.append(line)


def finite(value: Any) -> Any:
    """JSON has no NaN: what is no number is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value


def lines(path: str) -> Iterator[dict[str, Any]]:
    """Every whole line. What was cut short by the end of a machine is left out."""
    try:
        with open(path, "rb") as file:
            read = 0
            for line in iter(lambda: file.readline(MOST_LINE_BYTES), b""):
                read += len(line)
                if read > MOST_BYTES:
                    return
                if not line.endswith(b"\n"):
                    continue
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    yield value
    except OSError:
        return


class Follower:
    """Lines of a journal that grows, each once."""

    def __init__(self, path: str) -> None:
        self.path, self._at = path, 0

    def new_lines(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._at)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._at += len(line)
                    with contextlib.suppress(ValueError, RecursionError):
                        value = json.loads(line)
                        if isinstance(value, dict):
                            yield value
        except OSError:
            return


def utc(seconds: float | None = None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
