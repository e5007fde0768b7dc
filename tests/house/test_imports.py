"""Imports point one way, and nothing heavy is loaded before it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = SOURCE / "tunecast"

LEVELS = {"result": 0, "units": 0, "errors": 0, "records": 0, "tables": 0, "home": 0, "job": 1, "tape": 2,
          "hardware": 2, "prediction": 3, "market": 3, "advise": 4, "planning": 5, "launching": 6, "report": 7,
          "learn": 7, "door": 8, "web": 9, "lsp": 10, "cli": 11}  # fmt: skip
"""A room may import from rooms below it, and from itself. `tape` and `hardware` are on one level: neither sees the
other."""
TRACED_ONLY = PACKAGE / "tape" / "trace"
"""The one place that imports torch and its friends, and of it only what the traced process loads."""
SERVER = PACKAGE / "web" / "http"
"""The one place that imports Starlette and uvicorn; `tunecast serve` loads it once it has found both."""
EDITOR = PACKAGE / "lsp" / "protocol"
"""The one place that imports pygls; `tunecast lsp` loads it once it has found it."""
ASKING = {"__init__", "card", "engine", "interpreter", "request", "run"}
"""The files of that place that the asking process loads."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "tunecast" and len(parts) > 1 else None


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    for name in imported(path):
        other = room(name)
        if other is not None and other in LEVELS and other != own:
            assert LEVELS[other] < LEVELS[own], f"{own} may not import {name}"


def test_every_room_has_its_level() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    assert rooms - {"__init__", "__main__"} == set(LEVELS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_traced_process_needs_other_packages(path: Path) -> None:
    if {SERVER, EDITOR} & set(path.parents) or (TRACED_ONLY in path.parents and path.stem not in ASKING):
        return
    for name in imported(path, top_level_only=True):
        assert name.split(".")[0] in {*sys.stdlib_module_names, "tunecast"}, f"imports {name} at the top"


def loaded_by(code: str) -> set[str]:
    """The names of all modules a fresh interpreter holds after running it."""
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, sep='\\n')"],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    return set(told.stdout.splitlines())


HEAVY = {"torch", "numpy", "yaml", "transformers", "peft", "bitsandbytes", "accelerate", "pydantic"}


def test_importing_tunecast_loads_nothing_heavy() -> None:
    loaded = loaded_by("import tunecast")
    assert "tunecast" in loaded
    assert not loaded & HEAVY
    assert not {name for name in loaded if name.startswith("tunecast.")}, "each name is loaded when it is asked for"


def test_every_public_name_loads_nothing_heavy() -> None:
    loaded = loaded_by("import tunecast; [getattr(tunecast, name) for name in tunecast.__all__]")
    assert "tunecast.door.predict" in loaded
    assert not loaded & HEAVY


SLOW = {
    *("dataclasses", "inspect", "pathlib", "tomllib", "random", "statistics", "fractions", "tempfile", "difflib"),
    *(
        "shutil",
        "importlib.resources",
        "urllib.parse",
        "multiprocessing",
        "tunecast.job.hub",
        "tunecast.report.draw.text",
    ),
}
"""Each takes milliseconds to load, and a prediction in JSON needs none."""


def test_a_prediction_loads_nothing_slow() -> None:
    before = loaded_by("pass")
    loaded = loaded_by("from tunecast.cli.main import main; main(['predict', 'llama-3.2-1b', '--json'])")
    assert "tunecast.prediction.time.timing" in loaded
    assert not loaded & {*HEAVY, *SLOW} - before


def test_version_loads_no_command() -> None:
    loaded = loaded_by("from tunecast.cli.main import main; main(['--version'])")
    assert "tunecast.cli.main" in loaded
    assert not loaded & {*HEAVY, "argparse", "json", "dataclasses", "subprocess"}
    assert {name for name in loaded if name.split(".")[0] == "tunecast"} <= {
        *("tunecast", "tunecast.cli", "tunecast.cli.main", "tunecast.errors"),
    }
