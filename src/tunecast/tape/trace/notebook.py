"""A notebook, run as a script: its code cells in their order, in one namespace.

Magics and lines for the shell are left out, and said; one that starts a training of its own is refused, since that
training would be traced by itself.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

from tunecast.errors import UsageError
from tunecast.job.recipes.scripts.source import OTHER_LANGUAGES, SHELL, code_cells, without_shell
from tunecast.tape.trace.places import CELL

STARTING = re.compile(r"(?:^|[;&|]\s*|!|%run\s+)\s*(?:\w+=\S+\s+)*"
                      r"((?:python[\d.]*\s+(?!-m\s+pip|-c)|torchrun\s|accelerate\s+launch\s|deepspeed\s|bash\s+\S+\.sh|"
                      r"trl\s|axolotl\s+train|llamafactory-cli\s+train|[\w./-]+\.py\b).*)")  # fmt: skip


def run_notebook(path: str, say: Callable[[str], None]) -> None:
    """As `__main__`. `say` is told what is left out."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, display=print, get_ipython=lambda: None)
    sys.modules["__main__"] = main
    for number, source in enumerate(code_cells(Path(path)), 1):
        name = f"{os.path.basename(path)}{CELL}{number}"
        for line, told in _left_out(source):
            refuse_training(told, f"{name}, line {line}")
            say(f"a notebook's lines for the shell are left out: {told.strip()[:80]}")
        if OTHER_LANGUAGES.match(source):
            continue
        text = without_shell(source)
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), main.__dict__)


def _left_out(source: str) -> list[tuple[int, str]]:
    """Lines that are no Python, by their number."""
    lines = list(enumerate(source.split("\n"), 1))
    if OTHER_LANGUAGES.match(source):
        return [(number, line) for number, line in lines if line.strip()]
    return [(number, line) for number, line in lines if SHELL.match(line)]


def refuse_training(line: str, place: str) -> None:
    found = STARTING.search(line.strip().lstrip("!").strip())
    if found is not None:
        command = found[1].strip()[:200]
        raise UsageError(
            f"{place}: {line.strip()[:200]} starts a training of its own. To fix: tunecast trace -- {command}",
            field="script",
        )
