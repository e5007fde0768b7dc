"""What is written in C: used only if it was made of the source beside it, and made wherever it can be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "tunecast" / "prediction" / "native"
CAN_COMPILE = shutil.which("cc") is not None and (Path(sysconfig.get_path("include")) / "Python.h").is_file()
needs_compiler = pytest.mark.skipif(not CAN_COMPILE, reason="no C compiler with Python's headers")
IS_USED = "from tunecast.prediction import native as n; print(None not in (n.run, n.least, n.price))"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of its own, as far as prediction/native asks, and compiled."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "compile_native.py", root)
    made = root / "src" / "tunecast" / "prediction" / "native"
    made.mkdir(parents=True)
    for name in ("__init__.py", "_native.c", "_pricing.c", "_columns.c"):
        shutil.copy(FOLDER / name, made)
    tape = made.parent.parent / "tape"
    tape.mkdir()
    shutil.copy(ROOT / "src" / "tunecast" / "tape" / "columns.py", tape)
    shutil.copy(ROOT / "src" / "tunecast" / "records.py", made.parent.parent)
    for package in (made.parent, made.parent.parent, tape):
        (package / "__init__.py").touch()
    return root


def compiled(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "compile_native.py"]
    return subprocess.run(command, cwd=checkout, env=_environment(environment), capture_output=True, text=True)


def is_used(checkout: Path, **environment: str) -> bool:
    command = [sys.executable, "-c", IS_USED]
    environment["PYTHONPATH"] = str(checkout / "src")
    told = subprocess.run(command, env=_environment(environment), capture_output=True, text=True, check=True)
    return told.stdout.strip() == "True"


def _environment(more: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("TUNECAST_NATIVE", "CC")} | more


@needs_compiler
def test_is_used_once_it_is_compiled_and_until_its_source_changes(checkout: Path) -> None:
    assert not is_used(checkout)
    told = compiled(checkout)
    assert (told.returncode, told.stderr) == (0, "")
    assert is_used(checkout)
    assert not is_used(checkout, TUNECAST_NATIVE="0")
    source = checkout / "src" / "tunecast" / "prediction" / "native" / "_pricing.c"
    text = source.read_text(encoding="utf-8")
    source.write_text(text + "\n", encoding="utf-8")
    assert not is_used(checkout), "a file that was made of another source"
    source.write_text(text, encoding="utf-8")
    assert is_used(checkout)


def test_without_a_compiler_there_is_one_line_and_python(checkout: Path) -> None:
    told = compiled(checkout, CC="no-such-compiler")
    assert told.returncode == 0
    assert told.stderr.count("\n") == 1 and "run in Python" in told.stderr
    told = compiled(checkout, CC="no-such-compiler", TUNECAST_NATIVE="1")
    assert told.returncode != 0 and "TUNECAST_NATIVE=1" in told.stderr
    assert not compiled(checkout, CC="no-such-compiler", TUNECAST_NATIVE="0").stderr


@needs_compiler
def test_compiles_without_a_warning(tmp_path: Path) -> None:
    include = sysconfig.get_path("include")
    for source in sorted(FOLDER.glob("*.c")):
        command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-O2", "-DCHECKSUM=1UL",
                   f"-I{include}", "-c", str(source), "-o", str(tmp_path / "made.o")]  # fmt: skip
        told = subprocess.run(command, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr


def test_both_files_name_the_same_sources() -> None:
    from tunecast.prediction.native import SOURCES

    assert sorted(SOURCES) == sorted(path.name for path in FOLDER.glob("*.c"))
    assert f"SOURCES = {SOURCES!r}".replace("'", '"') in (ROOT / "compile_native.py").read_text(encoding="utf-8")


def test_lines_are_as_long_as_python_s() -> None:
    for source in FOLDER.glob("*.c"):
        assert max(map(len, source.read_text(encoding="utf-8").splitlines())) <= 120


@pytest.mark.skipif(os.environ.get("TUNECAST_NATIVE") == "0", reason="the suite runs without what is compiled")
@needs_compiler
def test_this_checkout_is_compiled() -> None:
    """Else half of what the tests are to compare is left out: python compile_native.py."""
    assert is_used(ROOT)
