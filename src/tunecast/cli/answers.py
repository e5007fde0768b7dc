"""How a command prints its answer: as JSON, in one line, or as text for the terminal that reads it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, Protocol

from tunecast.cli.terminal import terminal_of
from tunecast.report.draw.text import Terminal


class HasJson(Protocol):
    def to_dict(self) -> Any: ...


def print_answer(
    found: HasJson,
    arguments: argparse.Namespace,
    text: Callable[[Terminal], str],
    short: Callable[[], str] | None = None,
) -> None:
    """`short`: what a command prints that was asked `--short`."""
    if arguments.json:
        print(json.dumps(found.to_dict()), flush=True)
    elif short is not None and arguments.short:
        print(short(), end="", flush=True)
    else:
        print(text(terminal_of(sys.stdout)), end="", flush=True)
