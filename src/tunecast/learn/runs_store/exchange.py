"""Runs as JSON Lines: one record a line, written and read anywhere. What is imported twice is there once."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, ClassVar

from tunecast.errors import NotResolved, UsageError
from tunecast.job.readers.bounds import decoded
from tunecast.job.readers.json import parsed
from tunecast.learn.record import MOST_RECORD_BYTES, MOST_VALUES, MeasuredRun, run_from, unknown_keys
from tunecast.learn.runs_store.store import PAGE, RunStore
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result

MOST_BAD = 20
"""Lines that are named; more are counted."""
MOST_KEYS = 100


class RefusedLine(NamedTuple):
    line: int
    reason: str


@dataclass(frozen=True)
class ImportedRuns(Result):
    """What became of a file's lines."""

    schema: ClassVar[str] = "tunecast.runs-imported/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "runs", "added", "bad_lines", "bad", "unknown_keys")

    runs: int
    """Lines that are runs, all of them in the store now."""
    added: int
    """Those that were not there before."""
    bad_lines: int
    bad: tuple[RefusedLine, ...] = ()
    """The first of them."""
    unknown_keys: tuple[str, ...] = ()
    """Keys that this tunecast does not know, and left out."""


def run_lines(runs: Iterable[MeasuredRun | Mapping[str, Any]]) -> Iterator[str]:
    for run in runs:
        yield json.dumps(run.to_dict() if isinstance(run, MeasuredRun) else run) + "\n"


def import_runs(store: RunStore, path: str) -> ImportedRuns:
    """Every run of a file (`-`: of stdin), some at a time: what was read before a failure is stored."""
    if path == "-":
        return import_lines(store, sys.stdin.buffer)
    try:
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115
    except ValueError:  # a NUL in the path
        raise NotResolved(f"{path}: not a path") from None
    except OSError as error:
        raise NotResolved(f"{path}: {error.strerror}") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotResolved(f"{path}: not a plain file; - reads from standard input")
        try:
            return import_lines(store, file)
        except OSError as error:
            raise NotResolved(f"{path}: {error.strerror}") from None


def import_lines(store: RunStore, file: IO[bytes]) -> ImportedRuns:
    page: list[MeasuredRun] = []
    keys: dict[str, None] = {}
    bad: list[RefusedLine] = []
    runs = added = bad_lines = 0
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        try:
            run, unknown = _run(line)
        except UsageError as error:
            bad_lines += 1
            if len(bad) < MOST_BAD:
                bad.append(RefusedLine(number, " ".join(error.message.split("\n"))[:500]))
            continue
        if len(keys) < MOST_KEYS:
            keys |= dict.fromkeys(unknown)
        page.append(run)
        runs += 1
        if len(page) == PAGE:
            added += store.add_many(page)
            page.clear()
    if page:
        added += store.add_many(page)
    return ImportedRuns(runs, added, bad_lines, tuple(bad), tuple(keys)[:MOST_KEYS])


def _run(line: bytes) -> tuple[MeasuredRun, tuple[str, ...]]:
    if len(line) > MOST_RECORD_BYTES:
        raise UsageError(f"longer than {MOST_RECORD_BYTES} bytes, the most that a run takes")
    told = parsed(decoded(line, "line"), "line", most_values=MOST_VALUES, one_line=True)
    return run_from(told), unknown_keys(told)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Each line, of a longer one its beginning, which is longer than any run's."""
    while line := file.readline(MOST_RECORD_BYTES + 2):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(MOST_RECORD_BYTES)


def _open_without_waiting(path: str, flags: int) -> int:
    # a named pipe without a writer would block for ever
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
