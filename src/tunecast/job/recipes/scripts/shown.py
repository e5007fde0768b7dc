"""The command that a script's own text shows to start it with, as its docstring has it: what it sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.recipes.commands import commands_of
from tunecast.job.recipes.launch.launchers import launched
from tunecast.job.recipes.request import Launch, ReadRequest
from tunecast.job.recipes.scripts.source import statements_of
from tunecast.job.recipes.words import flags_of
from tunecast.records import NamedTuple


class ShownCommand(NamedTuple):
    values: Mapping[str, Any]
    places: Mapping[str, tuple[str, int]]
    launch: Launch


def shown_command(request: ReadRequest) -> ShownCommand | None:
    """The first command of the docstring that starts this file; None where it shows none."""
    path = Path(request.document.file)
    for text, first in texts_of(path):
        for lines, line in joined_lines(text, path.name, first):
            for command in commands_of(lines, {}, line):
                words, launch = launched(command, request, str(path))
                if words and words[0].endswith(path.name):
                    flags = flags_of(words[1:])
                    places = {name: (str(path), flags.lines.get(name, line)) for name in flags.values}
                    return ShownCommand(flags.values, places, launch)
    return None


def joined_lines(text: str, name: str, first: int) -> Iterator[tuple[str, int]]:
    """Lines that name it, with those that a backslash joins to them, and the line of the file they begin on: what
    stands around them is no shell's."""
    lines = [line.removeprefix("$ ") for line in text.split("\n")]
    after = 0
    for index, line in enumerate(lines):
        if name not in line or index < after:
            continue
        begin, after = index, index + 1
        while begin > 0 and lines[begin - 1].rstrip().endswith("\\"):
            begin -= 1
        while after < len(lines) and lines[after - 1].rstrip().endswith("\\"):
            after += 1
        yield "\n".join(lines[begin:after]), first + begin


def texts_of(path: Path) -> Iterator[tuple[str, int]]:
    """Of a module, its docstring and others that stand alone as it does; and their lines."""
    try:
        statements = statements_of(path)
    except TunecastError:
        return
    for each in statements:
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
            yield each.value.value, each.lineno
