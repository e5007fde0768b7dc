"""`./dev` makes its environments with what there is: here with stand-ins that write down how they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
case "$*" in
*version_info*-venv* | *print*) echo 3.11 ;;
*"import sys; sys.exit"*) exit 0 ;;
*"import ensurepip"*) exit {ensurepip} ;;
"-m pip --python "*" --version") exit {pip} ;;
"-m venv "*) echo "python $*" >>"$LOG"; for folder; do :; done; mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python" ;;
*) echo "python $*" >>"$LOG" ;;
esac
"""
OTHER = """#!/bin/sh
echo "{name} $*" >>"$LOG"
for folder; do :; done
mkdir -p "$folder/bin"
cp "$(command -v python3)" "$folder/bin/python"
"""


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def made_by(tmp_path: Path, *others: str, ensurepip: int = 1, pip: int = 1) -> tuple[int, str, str]:
    """Exit code, what was called first, and what was said, where Python has (0) or lacks (1) its parts."""
    tools, log = tmp_path / "tools", tmp_path / "log"
    tools.mkdir()
    program(tools / "python3", PYTHON.format(ensurepip=ensurepip, pip=pip))
    program(tools / "id", "#!/bin/sh\necho 1000\n")
    for name in others:
        program(tools / name, OTHER.format(name=name))
    for name in ("bash", "sh", "env", "dirname", "cat", "cksum", "cut", "rm", "mkdir", "cp", "sed"):
        (tools / name).symlink_to(shutil.which(name) or name)
    environment = {
        "PATH": str(tools),
        "LOG": str(log),
        "TUNECAST_VENVS": str(tmp_path / "venvs"),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(["bash", str(ROOT / "dev"), "example"], env=environment, capture_output=True, text=True)
    first = log.read_text().splitlines()[0] if log.exists() else ""
    return done.returncode, first, done.stderr


@pytest.mark.parametrize(
    ("others", "ensurepip", "pip", "first"),
    [
        (("uv", "virtualenv"), 0, 0, "python -m venv "),
        (("uv", "virtualenv"), 1, 0, "uv venv --quiet --seed --python "),
        (("virtualenv",), 1, 0, "virtualenv --quiet --python "),
        ((), 1, 0, "python -m venv --without-pip "),
    ],
    ids=["venv", "uv", "virtualenv", "pip"],
)
def test_an_environment_without_root(
    tmp_path: Path, others: tuple[str, ...], ensurepip: int, pip: int, first: str
) -> None:
    assert made_by(tmp_path, *others, ensurepip=ensurepip, pip=pip)[1].startswith(first)
    assert os.path.exists(tmp_path / "venvs" / "example" / "bin" / "python")


def test_where_there_is_nothing_it_says_what_to_install(tmp_path: Path) -> None:
    code, first, said = made_by(tmp_path)
    assert (code, first) == (1, "")
    assert "To fix: apt-get install python3.11-venv, as root; or have uv or virtualenv on the PATH." in said
