"""Programs that an environment installs: `trl sft`, `llamafactory-cli train`, `axolotl train`, any entry point.

Such a program is a small Python script in the environment's `bin`. It is run as one; where it starts a launcher of its
own (accelerate, torchrun), the traced process says so, and what that would start is traced instead.
"""

from __future__ import annotations

import os
import re
import shutil

from tunecast.errors import NotResolved

FIRST_LINE = re.compile(r"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S*python[\d.]*)\b")
LONG_PATH = re.compile(r"'''exec'\s+\"?([^\"\n]*?python[\d.]*)\"?\s")
"""pip's way around the longest path a first line may have: a script of sh and Python at once."""
MOST_HEAD_BYTES = 2000


def program_path(name: str, python: str) -> tuple[str, str]:
    """Where the program lies, and the interpreter it names; beside `python` before elsewhere.

    Raises `NotResolved` where there is none, or none of Python.
    """
    beside = os.path.join(os.path.dirname(python), name)
    path = beside if os.path.isfile(beside) else shutil.which(name)
    if path is None:
        raise NotResolved(
            f"there is no script {name!r}, and no program of that name in {os.path.dirname(python)} or on PATH",
            field="script",
        )
    interpreter = interpreter_of(path)
    if interpreter is None:
        raise NotResolved(f"{path} is no Python program, so it cannot be traced", field="script")
    return path, interpreter


def interpreter_of(path: str) -> str | None:
    """The Python that a script's first lines name."""
    try:
        with open(path, "rb") as file:
            head = file.read(MOST_HEAD_BYTES).decode(errors="replace")
    except OSError:
        return None
    found = FIRST_LINE.match(head) or (LONG_PATH.search(head) if head.startswith("#!") else None)
    return found[1] if found else None
