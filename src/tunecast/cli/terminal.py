"""What stdout and stderr can show, and the line on stderr that counts the seconds."""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock
from collections.abc import Mapping
from types import TracebackType
from typing import TextIO

from tunecast.errors import printable
from tunecast.report.text import Terminal

NARROWEST, WIDEST = 72, 140
LONGEST_LABEL = 60
"""Of a line that is written over: one that wraps is not wiped."""


def terminal_of(stream: TextIO, environ: Mapping[str, str] | None = None) -> Terminal:
    """Colours for a terminal only, and not where NO_COLOR is set (no-color.org) or TERM is dumb."""
    env = os.environ if environ is None else environ
    live = stream.isatty()
    colour = live and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
    width = columns_of_terminal(100) if live else 100
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    return Terminal(min(max(width, NARROWEST), WIDEST), colour, encoding.startswith("utf"))


def columns_of_terminal(otherwise: int = 80) -> int:
    from shutil import get_terminal_size  # it loads every compression there is

    return get_terminal_size((otherwise, 24)).columns


class Bar:
    """`planning llama-3.1-8b  ########........  52 %`, once it has taken a while; where stderr is a terminal."""

    WIDTH = 24

    def __init__(self, label: str, *, after_s: float, live: bool = True, stream: TextIO | None = None) -> None:
        self._label, self._after_s = printable(label, LONGEST_LABEL), after_s
        self._stream = sys.stderr if stream is None else stream
        self._live = live and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = -1

    def __enter__(self) -> Bar:
        return self

    def __call__(self, passed_s: float, done: int, of: int) -> None:
        share = done / of if of else 1.0
        percent = int(100 * share)
        if not self._live or passed_s < self._after_s or percent <= self._shown:
            return
        self._shown, full = percent, int(self.WIDTH * share)
        self._stream.write(f"\r\x1b[K{self._label}  {'#' * full}{'.' * (self.WIDTH - full)}  {percent} %\r")
        self._stream.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live and self._shown >= 0:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


class Progress:
    """`tracing llama-3.1-8b  12 s`, rewritten in place; nothing at all where stderr is no terminal.

    `aside` writes it at the right edge and leaves the cursor at the left one, where what a traced script prints
    begins. Traces run side by side call from their own threads.
    """

    def __init__(self, label: str, stream: TextIO | None = None, *, aside: bool = False) -> None:
        self._label = printable(label, LONGEST_LABEL)
        self._aside = aside
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_s = -1
        self._lock = allocate_lock()

    def __enter__(self) -> Progress:
        return self

    def __call__(self, passed_s: float) -> None:
        with self._lock:
            if self._live and int(passed_s) > self._shown_s:
                self._shown_s = int(passed_s)
                text = f"{self._label}  {self._shown_s} s"
                column = columns_of_terminal() - len(text) if self._aside else 0
                self._stream.write(f"\r\x1b[K{f'{chr(27)}[{column}G' if column > 0 else ''}{text}\r")
                self._stream.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live and self._shown_s >= 0:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
