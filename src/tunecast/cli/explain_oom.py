"""`tunecast explain-oom [JOB] train.log`: what filled the card, and what to change."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser
from tunecast.cli.asking import add_asking_flags, counting_seconds, engine_from
from tunecast.door.explain_oom import explain_oom
from tunecast.door.read import read
from tunecast.errors import NotResolved, UsageError
from tunecast.job.flags import COMMON, add_job_flags, overrides_from
from tunecast.job.readers import FORMATS
from tunecast.report.lists.oom import oom_text
from tunecast.report.run.wording import wording_of
from tunecast.units import MIB, gib

USAGE = "tunecast explain-oom [JOB] [train.log] [options]"
DESCRIPTION = """\
Reads PyTorch's out-of-memory message from a log, a file or stdin (any PyTorch since 1.0; CUDA, HIP, XPU), and says what
filled the card, which request failed, and what to change. With the JOB that ran (a file, or a model with flags): where
its memory goes at the peak, and what each change would free."""
EPILOG = """\
examples:
  tunecast explain-oom train.log
  tunecast explain-oom job.yaml train.log
  python train.py 2>&1 | tee /dev/stderr | tunecast explain-oom job.yaml
  tunecast explain-oom llama-3.1-8b --method lora --micro-batch 8 < train.log

JOB and log may come in either order; - is stdin. If the log has several messages, the last one is explained. Exit code
5 if it has none.
"""
LOGS = (".log", ".txt", ".out", ".err")
"""Endings of files that are logs also where they are not there: the message then is about the file."""
PIECE_BYTES = MIB
MOST_LOG_BYTES = 512 * MIB
"""Of a file the last so much is read, of a pipe the first; the error ends most logs."""

SHORT = (*COMMON, "--set", "--json", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("explain-oom", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument(
        "sources", metavar="JOB|LOG", nargs="*", help="the job that ran: a file, or a model; and the log, - for stdin"
    )
    add_asking_flags(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    overrides = overrides_from(arguments)
    source, log = job_and_log(arguments.sources)
    if source is None and overrides:
        given = next(iter(overrides))
        raise UsageError(f"{given}: given without a JOB it would belong to. To fix: {USAGE}", field=given)
    job = None if source is None else read(source, overrides)
    with open_log(log) as stream, counting_seconds(f"predicting {source}") as tick:
        found = explain_oom(pieces(stream), job, name=log, tick=tick, **engine_from(arguments))
    print_answer(found, arguments, partial(oom_text, found, wording=wording_of(source)))
    return 0


def job_and_log(sources: Sequence[str]) -> tuple[str | None, str | None]:
    """What of the arguments is the job and what the log's file, in either order; None: not given, or stdin."""
    logs = [source for source in sources if is_log(source)]
    jobs = [source for source in sources if source not in logs]
    if len(logs) > 1 or len(jobs) > 1:
        got = f"got {len(jobs)} jobs" if len(jobs) > 1 else f"got {len(logs)} logs"
        raise UsageError(f"{got}: {', '.join(jobs if len(jobs) > 1 else logs)}; allowed: one each. To fix: {USAGE}")
    log = logs[0] if logs and logs[0] != "-" else None
    return jobs[0] if jobs else None, log


def is_log(source: str) -> bool:
    """A file that is no job's and no model's, or is called as logs are; `-`."""
    path = Path(source)
    if source == "-" or path.suffix.lower() in LOGS:
        return True
    return path.is_file() and path.suffix.lower() not in FORMATS


@contextlib.contextmanager
def open_log(log: str | None) -> Iterator[BinaryIO]:
    if log is not None:
        try:
            stream = open(log, "rb")  # noqa: SIM115  closed below, and only what opening it raises is told
        except OSError as error:
            raise NotResolved(f"{log}: {error.strerror}", field=log) from None
        with stream:
            yield stream
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(f"there is no log: neither a file nor stdin. To fix: {USAGE}", field="stdin")
    yield sys.stdin.buffer


def pieces(stream: BinaryIO) -> Iterator[str]:
    """The log in pieces that fit in memory, whatever its bytes."""
    with contextlib.suppress(OSError):  # where there is no going back, it is read from where it stands
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            here = stream.tell()
            stream.seek(max(here, stream.seek(0, os.SEEK_END) - MOST_LOG_BYTES))
    read = 0
    while piece := stream.read(PIECE_BYTES):
        yield piece.decode("utf-8", "replace")
        read += len(piece)
        if read >= MOST_LOG_BYTES:
            print(f"tunecast: only {gib(read)} of the log were read", file=sys.stderr)
            return
