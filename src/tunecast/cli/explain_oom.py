"""`tunecast explain-oom [JOB] < log`: what filled the card, and what to change."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from tunecast.cli.arguments import Parser
from tunecast.cli.asking import Asking, add_asking_flags
from tunecast.cli.terminal import terminal_of
from tunecast.cli.usage import COMMON
from tunecast.errors import NotResolved, UsageError
from tunecast.job.flags import add_job_flags, overrides_from
from tunecast.job.job import Job
from tunecast.predict.changes import changes_tried, with_fields
from tunecast.predict.engines import the_job
from tunecast.predict.oom import OomMessage, filled, messages, the_message
from tunecast.predict.oom_advice import advice_for
from tunecast.predict.oom_job import advice_for_job, is_same_run
from tunecast.report.oom import Explained, Foreseen, oom_dict, oom_text
from tunecast.units import MIB, gib

USAGE = "tunecast explain-oom [JOB] [options] < train.log"
DESCRIPTION = """\
Reads PyTorch's out-of-memory message from a log on stdin (any PyTorch since 1.0; CUDA, HIP, XPU) and says what filled
the card, which request failed, and what to change. With the JOB that ran (a file, or a model with flags): where its
memory goes at the peak, and what each change would save."""
EPILOG = """\
examples:
  tunecast explain-oom < train.log
  python train.py 2>&1 | tee /dev/stderr | tunecast explain-oom job.yaml
  tunecast explain-oom llama-3.1-8b --method lora --micro-batch 8 < train.log

Of several messages the last is explained. Exit code 5 where the log holds none.
"""
PIECE_BYTES = MIB
MOST_LOG_BYTES = 512 * MIB
"""Of a file the last so much is read, of a pipe the first; the error ends most logs."""

SHORT = (*COMMON, "--set", "--json", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("explain-oom", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", nargs="?", help="the job that ran: a file, or a model")
    add_asking_flags(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    overrides = overrides_from(arguments)
    if arguments.source is None and overrides:
        given = next(iter(overrides))
        raise UsageError(f"{given}: given without a JOB it would belong to. To fix: {USAGE}", field=given)
    job = None if arguments.source is None else the_job(arguments.source, overrides)
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(f"there is no log on stdin. To fix: {USAGE}", field="stdin")
    message, count = the_message(messages(pieces(sys.stdin.buffer)))
    if message is None:
        raise NotResolved(
            "the log holds no out-of-memory message of PyTorch (such as 'CUDA out of memory. Tried to allocate ...'). "
            "To fix: give the whole log, stderr included: python train.py > train.log 2>&1",
            field="stdin",
        )
    foreseen, advice = None, advice_for(message)
    if job is not None:
        with Asking(arguments, f"predicting {arguments.source}") as asking:
            on_this_card = with_room_of(job, message)
            before = asking.predict(on_this_card)
            changes = tuple(changes_tried(on_this_card, before, asking.predict))
            foreseen = Foreseen(before, changes, is_same_run(before.held.tape, before.held.capacity_bytes, message))
        advice = advice_for_job(advice, before.prediction, changes, foreseen.same_run)
    told = Explained(message, count, tuple(advice), foreseen)
    if arguments.json:
        print(json.dumps(oom_dict(told)))
    else:
        print(oom_text(told, terminal_of(sys.stdout)), end="")
    return 0


def with_room_of(job: Job, message: OomMessage) -> Job:
    """The job with what PyTorch could have had on the card that ran out: all but what is outside it and others'.

    A capacity the job itself names stands.
    """
    filling = filled(message)
    if filling is None or job.hardware.capacity_bytes is not None:
        return job
    room = filling.total_bytes - filling.outside_bytes - filling.others_bytes
    if message.allowed_bytes is not None:
        room = min(room, message.allowed_bytes)
    return with_fields(job, {"hardware.capacity_bytes": max(1, room), "hardware.reserve_bytes": 0})


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
