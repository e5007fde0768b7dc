"""Compiles prediction/native/*.c, which replays runs and prices steps ten times as fast as the Python it stands for.

    python compile_native.py          beside the source, for this checkout

`pip install .` does it too where there is a C compiler with Python's headers, and goes without where there is none;
`TUNECAST_NATIVE=0` goes without in any case, `TUNECAST_NATIVE=1` fails rather than that.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any
from zlib import crc32

FOLDER = Path(__file__).parent / "src" / "tunecast" / "prediction" / "native"
SOURCES = ("_native.c", "_pricing.c", "_columns.c")
MADE = FOLDER / "_native.abi3.so"
FLAGS = ("-O3", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Wextra", "-Wno-unused-parameter")
"""No products and sums in one: the figures are those of Python on any processor."""


def checksum() -> int:
    """As `tunecast.prediction.native` reckons it."""
    value = 0
    for name in SOURCES:
        value = crc32((FOLDER / name).read_bytes(), value)
    return value


def compile_native(*more_flags: str, made: Path = MADE) -> None:
    """For the stable interface of Python 3.11 and later: one file serves them all. It comes into its place whole."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    fresh = made.with_suffix(f".{os.getpid()}")
    command = [
        *compiler, *FLAGS, *more_flags, f"-DCHECKSUM={checksum()}UL", f"-I{sysconfig.get_path('include')}",
        *(str(FOLDER / name) for name in SOURCES), "-o", str(fresh), "-lm",
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        fresh.replace(made)
    finally:
        fresh.unlink(missing_ok=True)


def compiled(wanted: str | None) -> bool:
    """Whether it was; `wanted` is what TUNECAST_NATIVE says."""
    if wanted == "0":
        return False
    try:
        compile_native()
    except (OSError, subprocess.CalledProcessError) as error:
        if wanted == "1":
            why = getattr(error, "stderr", None) or error
            raise SystemExit(f"TUNECAST_NATIVE=1, but prediction/native/*.c cannot be compiled: {why}") from error
        print("tunecast: no C compiler with Python's headers, so replays and prices run in Python", file=sys.stderr)
        return False
    return True


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, where nothing is built
    pass
else:

    class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Of a wheel, also of the one an editable installation is; a source distribution is pure."""
            if self.target_name != "wheel" or not compiled(os.environ.get("TUNECAST_NATIVE")):
                return
            if version != "editable":
                build_data["artifacts"].append(str(MADE.relative_to(Path(__file__).parent)))
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"], build_data["tag"] = False, f"cp311-abi3-{platform}"


if __name__ == "__main__":
    compiled(os.environ.get("TUNECAST_NATIVE"))
