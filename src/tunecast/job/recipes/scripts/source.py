"""The statements of a script or notebook, with the lines of its file. Lines for the shell and magics are left out."""

from __future__ import annotations

import ast
import json as standard_json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.readers import json
from tunecast.job.readers.bounds import bounded_text
from tunecast.units import MIB

MOST_SCRIPT_BYTES = 2 * MIB
MOST_NOTEBOOK_BYTES = 32 * MIB
"""Pictures among its outputs included."""
MOST_CELLS = 5000
SHELL = re.compile(r"^(\s*)(?:[!%].*|\w+\s*=\s*[!%].*|pip3? install .*)$")
OTHER_LANGUAGES = re.compile(r"^\s*%%(?!capture|time|timeit|prun|memit)")
"""Cell magics after which a cell holds no Python: %%bash, %%writefile."""


def statements_of(path: Path) -> list[ast.stmt]:
    """Raises `UsageError` where it is no Python that this interpreter knows."""
    if path.suffix.lower() == ".ipynb":
        return list(_of_notebook(path))
    text = bounded_text(path, MOST_SCRIPT_BYTES)
    try:
        return _parsed(text)
    except SyntaxError:
        pass  # a notebook that was saved as a script keeps its shell lines
    try:
        return _parsed(without_shell(text))
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno or 1}: {_reason(error)}") from None


def _reason(error: SyntaxError) -> str:
    python = ".".join(map(str, sys.version_info[:2]))
    return f"not Python as {python} knows it ({error.msg}); a script in a newer one is read by a newer Python"


def _parsed(text: str) -> list[ast.stmt]:
    """Raises `SyntaxError` alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a text that is no raw one
            return ast.parse(text).body
    except (RecursionError, MemoryError):
        raise SyntaxError("nested too deeply") from None
    except ValueError as error:  # a NUL
        raise SyntaxError(str(error)) from None


def without_shell(text: str) -> str:
    """With `pass` in the place of lines that only a notebook understands."""
    lines, continued = [], False
    for line in text.split("\n"):
        found = SHELL.match(line)
        if found or continued:
            lines.append(f"{found[1]}pass" if found else "")
            continued = line.rstrip().endswith("\\")
        else:
            lines.append(line)
    return "\n".join(lines)


def _of_notebook(path: Path) -> Iterator[ast.stmt]:
    """Of its code cells, in their order; outputs are no part of it. A cell that is no Python is left out, unless none
    is."""
    text = bounded_text(path, MOST_NOTEBOOK_BYTES)
    cells = [cell for cell in _cells(json.parsed(text, str(path)), path) if not OTHER_LANGUAGES.match(cell)]
    failed: SyntaxError | None = None
    found, position = 0, 0
    for source in cells:
        lines, position = _lines_of(source, text, position)
        try:
            statements = _parsed(without_shell(source))
        except SyntaxError as error:
            failed = error
            continue
        found += 1
        for statement in statements:
            for node in ast.walk(statement):
                if hasattr(node, "lineno"):
                    node.lineno = lines[min(node.lineno, len(lines)) - 1]
            yield statement
    if failed is not None and not found:
        raise UsageError(f"{path}: {_reason(failed)}")


def code_cells(path: Path) -> list[str]:
    """The text of each code cell of a notebook, in their order. Raises `UsageError` where it is none."""
    return _cells(json.parsed(bounded_text(path, MOST_NOTEBOOK_BYTES), str(path)), path)


def _cells(notebook: Any, path: Path) -> list[str]:
    if not isinstance(notebook, Mapping) or not isinstance(notebook.get("cells"), list):
        raise UsageError(f"{path}: holds no notebook: no list of cells")
    sources = []
    for cell in notebook["cells"][:MOST_CELLS]:
        if isinstance(cell, Mapping) and cell.get("cell_type") == "code":
            source = cell.get("source")
            sources.append("".join(map(str, source)) if isinstance(source, list) else str(source or ""))
    return sources


def _lines_of(source: str, text: str, position: int) -> tuple[list[int], int]:
    """The line of the file each line of a cell stands on, where it is written as Jupyter does; and how far that is."""
    lines = []
    number = text.count("\n", 0, position) + 1
    for line in source.split("\n"):
        place = text.find(standard_json.dumps(line, ensure_ascii=False)[1:-1], position)
        if place >= 0 and line:
            number += text.count("\n", position, place)
            position = place
        lines.append(number)
    return lines, position
