"""Commands that ask an engine many times: which engine, and the seconds on stderr."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from tunecast.cli.arguments import add_json_flag
from tunecast.cli.terminal import Progress
from tunecast.door.asking import Tick
from tunecast.hardware.catalog import meant_by
from tunecast.prediction import engines

QUIET_S = 1.0
"""Shorter work needs no line that counts seconds."""


def add_asking_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it is answered")
    group.add_argument(
        "--engine",
        metavar="NAME",
        default=engines.DEFAULT_ENGINE,
        help=f"analytic or traced (default: {engines.DEFAULT_ENGINE})",
    )
    group.add_argument("--python", metavar="PATH", help="with --engine traced: Python with your torch")
    add_json_flag(group)


def engine_from(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"engine": arguments.engine, "python": arguments.python}


def say_card(given: str) -> None:
    """Which card a size was taken for, where the answer has no place for it."""
    meant = meant_by(given)
    if meant.is_size and (taken := meant.note(given)) is not None:
        print(f"tunecast: {taken}", file=sys.stderr)


def say_problems(problems: tuple[str, ...]) -> None:
    for problem in problems:
        print(f"tunecast: {problem}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def counting_seconds(label: str) -> Iterator[Tick]:
    """Called before each prediction it shows the seconds, where it takes some."""
    began_s = time.monotonic()
    with Progress(label) as progress:

        def tick() -> None:
            passed_s = time.monotonic() - began_s
            if passed_s >= QUIET_S:
                progress(passed_s)

        yield tick
