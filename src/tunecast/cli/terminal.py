"""What stdout and stderr can show, and the line on stderr that counts the seconds."""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from tunecast.errors import printable
from tunecast.report.draw.text import Terminal

if TYPE_CHECKING:
    import threading

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


class Counting:
    """`planning llama-3.1-8b  7 s  143 of 1,204 settings looked at`: the seconds go on by themselves, whatever takes
    them, and the counts are what was reported last. No share of the whole: most settings are ruled out at a glance, the
    others take a hundred times as long, and nobody knows beforehand which. Where stderr is a terminal, after a while.
    """

    EVERY_S = 0.25

    def __init__(
        self, label: str, what: str, *, after_s: float, live: bool = True, stream: TextIO | None = None
    ) -> None:
        self._label, self._what, self._after_s = printable(label, LONGEST_LABEL), what, after_s
        self._stream = sys.stderr if stream is None else stream
        self._live = live and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._counts, self._shown = (0, 0), ""
        self._began_s = 0.0
        self._over: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Counting:
        if self._live:
            import threading

            self._began_s, self._over = time.monotonic(), threading.Event()
            self._thread = threading.Thread(target=self._tick, args=(self._over,), daemon=True)
            self._thread.start()
        return self

    def __call__(self, passed_s: float, done: int, of: int) -> None:
        self._counts = (done, of)

    def show(self, passed_s: float) -> None:
        done, of = self._counts
        counts = f"  {done:,} of {of:,} {self._what}" if of else ""
        text = f"{self._label}  {int(passed_s)} s{counts}"
        if passed_s >= self._after_s and text != self._shown:
            self._shown = text
            self._stream.write(f"\r\x1b[K{text}\r")
            self._stream.flush()

    def _tick(self, over: threading.Event) -> None:
        while not over.wait(self.EVERY_S):
            self.show(time.monotonic() - self._began_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._over is not None and self._thread is not None:
            self._over.set()
            self._thread.join()
        if self._shown:
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
