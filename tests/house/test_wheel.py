"""The wheel holds the code, every data file the code reads, and the promise of types; and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import tunecast

ROOT = Path(__file__).parents[2]
DATA = {
    "tunecast/py.typed", "tunecast/hardware/gpus.toml", "tunecast/job/models.toml", "tunecast/job/architectures.toml",
    "tunecast/report/page/timeline.css", "tunecast/report/page/timeline.js",
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("tunecast-*-py3-none-any.whl")
    return zipfile.ZipFile(path)


def test_holds_all_of_the_package(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "tunecast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if name.startswith("tunecast/")}
    assert packed == wanted
    assert packed >= DATA
    assert len([name for name in packed if name.startswith("tunecast/job/models/")]) >= 16


def test_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    others = {name.split("/")[0] for name in wheel.namelist()} - {"tunecast"}
    assert others == {f"tunecast-{tunecast.__version__}.dist-info"}


def test_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    told = message_from_bytes(wheel.read(name))
    assert told["Version"] == tunecast.__version__
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Requires-Python"] == ">=3.11"
    needed = [text for text in told.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert needed == ["pyyaml>=6"], "trainers pin tightly: what we need of everyone is PyYAML, any 6 or later"
    bounds = [text.partition(";")[0] for text in told.get_all("Requires-Dist", [])]
    assert not [text for text in bounds if "<" in text or "==" in text], "lower bounds only"
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "tunecast = tunecast.cli.main:main" in wheel.read(entry).decode()
