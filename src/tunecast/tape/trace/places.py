"""Lines of the user's own code: of neither Python's library nor an installed package, nor the tracer."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

CELL = ", cell "
"""In the name that code of a notebook is compiled under: `train.ipynb, cell 3`."""
_INSTALLED = ("/site-packages/", "/dist-packages/")
_LIBRARY = tuple({
    os.path.realpath(path) + os.sep for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name))
})  # fmt: skip
_TRACER = str(Path(__file__).parents[2]) + os.sep


def is_own(file: str) -> bool:
    if CELL in file:
        return True
    path = os.path.realpath(file)
    return not (
        file.startswith("<") or any(part in path for part in _INSTALLED) or path.startswith((*_LIBRARY, _TRACER))
    )


def place_of_error(error: BaseException, script: str = "") -> str:
    """The innermost own line of an error or of those it came from; `script`, which may be installed, counts as own."""
    chain = list(_chain(error))
    for part in chain:
        if place := _innermost(traceback.extract_tb(part.__traceback__), script):
            return place
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(("<", _TRACER))]
    return shown_place(frames[-1].filename, frames[-1].lineno) if frames else ""


def place_of_caller() -> str:
    """The innermost own line that is running."""
    return _innermost(traceback.extract_stack(sys._getframe(1)), "")


def _innermost(frames: Iterable[traceback.FrameSummary], script: str) -> str:
    own = [f for f in frames if is_own(f.filename) or f.filename == script]
    return shown_place(own[-1].filename, own[-1].lineno) if own else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def shown_place(file: str, line: int | None) -> str:
    """`train.py:12`, from here where it lies below; `train.ipynb, cell 3, line 5`."""
    if CELL in file:
        return f"{os.path.basename(file)}, line {line}"
    inside = os.getcwd() + os.sep
    return f"{file.removeprefix(inside)}:{line}"
