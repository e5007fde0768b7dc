"""What is said to people while a run goes on: one line again and again, and each warning once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, TextIO

AT_TERMINAL_S, ELSEWHERE_S = 2.0, 600.0
"""Between two lines that are shown."""


class Told:
    """Lines for people: refreshed at a terminal, rare elsewhere. None: nobody is told. `shares`: with what the program
    itself writes there, such as a progress bar, so that nothing is refreshed."""

    def __init__(
        self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic, *, shares: bool = False
    ) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream is not None and not shares and is_terminal(stream)
        self._next, self._open = clock(), False
        self.last, self.texts = "", dict[str, str]()

    def once(self, about: str, text: str) -> None:
        if about not in self.texts:
            self.texts[about] = text
            self._print(text)

    def now(self, text: str) -> None:
        self.last = text
        if self._clock() < self._next:
            return
        self._next = self._clock() + (AT_TERMINAL_S if self._terminal else ELSEWHERE_S)
        if not self._terminal:
            self._print(text)
        elif self._stream is not None:
            self._write(f"\r\x1b[2K{text[: _width() - 1]}")
            self._open = True

    def end(self, text: str) -> None:
        self.last = text
        self._print(text)

    def _print(self, text: str) -> None:
        clear = "\r\x1b[2K" if self._open else ""
        self._open = False
        self._write(f"{clear}tunecast: {text}\n")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
                self._stream.flush()


def _width() -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(2).columns or 80
    return 80


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False
