"""The wheel holds the code, every data file the code reads, and the promise of types; and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import tunecast

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
CAN_COMPILE = shutil.which("cc") is not None and (Path(sysconfig.get_path("include")) / "Python.h").is_file()
DATA = {
    "tunecast/py.typed", "tunecast/hardware/gpus.toml", "tunecast/job/models.toml", "tunecast/job/architectures.toml",
    "tunecast/job/lengths.toml", "tunecast/report/page/timeline.css", "tunecast/report/page/timeline.js",
    "tunecast/report/page/common.js",
    "tunecast/report/page/plan.css", "tunecast/report/page/plan.js",
}  # fmt: skip


def built(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    kept = {name: value for name, value in os.environ.items() if name not in ("TUNECAST_NATIVE", "CC")}
    return subprocess.run(command, cwd=ROOT, env=kept | environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Without what can be compiled: it serves every platform."""
    folder = tmp_path_factory.mktemp("wheel")
    told = built(folder, TUNECAST_NATIVE="0")
    assert told.returncode == 0, told.stderr
    (path,) = folder.glob("tunecast-*-py3-none-any.whl")
    return zipfile.ZipFile(path)


def content(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if name.startswith("tunecast/")}


def test_holds_all_of_the_package(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "tunecast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    packed = content(wheel)
    assert packed == wanted
    assert packed >= DATA
    assert len([name for name in packed if name.startswith("tunecast/job/models/")]) >= 16


@pytest.mark.skipif(not CAN_COMPILE, reason="no C compiler with Python's headers")
def test_is_compiled_where_it_can_be(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    told = built(tmp_path)
    assert told.returncode == 0, told.stderr
    (path,) = tmp_path.glob("tunecast-*-cp311-abi3-*.whl")
    native = zipfile.ZipFile(path)
    assert content(native) - content(wheel) == {"tunecast/prediction/native/_native.abi3.so"}
    (tags,) = (name for name in native.namelist() if name.endswith(".dist-info/WHEEL"))
    assert message_from_bytes(native.read(tags))["Root-Is-Purelib"] == "false"


def test_is_pure_where_it_cannot(tmp_path: Path) -> None:
    told = built(tmp_path, CC="no-such-compiler")
    assert told.returncode == 0, told.stderr
    assert [path.name.endswith("-py3-none-any.whl") for path in tmp_path.iterdir()] == [True]
    assert built(tmp_path, CC="no-such-compiler", TUNECAST_NATIVE="1").returncode != 0


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
    assert "tunecast = tunecast.cli.main:command" in wheel.read(entry).decode()
