"""ruff and mypy, with the settings of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments",
    [("ruff", "check", "--no-cache", "src", "tests"), pytest.param(("mypy",), marks=pytest.mark.whole)],
    ids=["ruff", "mypy"],
)
def test_is_clean(arguments: tuple[str, ...], tmp_path: Path) -> None:
    cache = ("--cache-dir", str(tmp_path)) if arguments[0] == "mypy" else ()
    told = subprocess.run([sys.executable, "-m", *arguments, *cache], cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def test_files_are_readable_in_one_sitting() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "src").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert not long


def test_no_file_names_this_machine() -> None:
    """Paths of the machine the project was written on mean nothing on any other."""
    words = ("/" + "work/", "/" + "opt/envs", "../" + "shared")
    found = [
        str(path.relative_to(ROOT))
        for folder in ("src", "tests", "docs", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".toml", ".yaml") and any(word in path.read_text("utf-8") for word in words)
    ]
    assert not found
