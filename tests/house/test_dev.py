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


TOOLS = ("bash", "sh", "env", "dirname", "cat", "cksum", "cut", "rm", "mkdir", "cp", "sed", "mktemp")


def made_by(
    tmp_path: Path, *others: str, ensurepip: int = 1, pip: int = 1, command: str = "example", python: str = PYTHON
) -> tuple[int, str, str]:
    """Exit code, what was called first, and what was said, where Python has (0) or lacks (1) its parts."""
    tools, log = tmp_path / "tools", tmp_path / "log"
    tools.mkdir()
    program(tools / "python3", python.format(ensurepip=ensurepip, pip=pip))
    program(tools / "id", "#!/bin/sh\necho 1000\n")
    for name in others:
        program(tools / name, OTHER.format(name=name))
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name) or name)
    environment = {
        "PATH": str(tools),
        "LOG": str(log),
        "TUNECAST_VENVS": str(tmp_path / "venvs"),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(["bash", str(ROOT / "dev"), command], env=environment, capture_output=True, text=True)
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


def test_the_whole_suite_is_four_runs_and_its_end_says_how_they_went(tmp_path: Path) -> None:
    code, _, said = made_by(tmp_path, ensurepip=0, command="test")
    calls = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("python -m pytest")]
    assert (code, len(calls)) == (0, 4), said
    assert said.endswith("== all tests pass\n")
    assert sum("tests/trace -m trace and not slow and not newer" in call for call in calls) == 1


def test_a_run_that_fails_fails_the_suite(tmp_path: Path) -> None:
    python = PYTHON.replace("\n*) echo", "\n*pytest*properties*) exit 1 ;;\n*) echo")
    code, _, said = made_by(tmp_path, ensurepip=0, command="test", python=python)
    assert code == 1
    assert said.endswith("some tests fail\n")


def checksums(folder: Path) -> dict[str, str]:
    """Of the environments: what `./dev` compares to see whether one has to be made again."""
    names = "main programs older llamafactory skypilot example"
    script = f"source <(sed -n '/^recipe()/,/^}}/p' dev); for name in {names}; do echo $name $(recipe $name); done"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("changed", "again"),
    [("main", {"main", "programs"}), ("older", {"older", "llamafactory"}), ("skypilot", {"skypilot"}), ("new", set())],
)
def test_requirements_of_one_environment_make_no_other_again(tmp_path: Path, changed: str, again: set[str]) -> None:
    shutil.copy(ROOT / "dev", tmp_path)
    shutil.copytree(ROOT / "tests" / "environments", tmp_path / "tests" / "environments")
    before = checksums(tmp_path)
    with (tmp_path / "tests" / "environments" / f"{changed}.txt").open("a") as file:
        file.write("another==1\n")
    after = checksums(tmp_path)
    assert {name for name in before if before[name] != after[name]} == again
