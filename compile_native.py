"""Compiles predict/_native.c, which replays a run twenty times as fast as the Python that does the same.

python compile_native.py          beside the source, for this checkout
TUNECAST_NATIVE=1 pip wheel .     a wheel for this platform; without the variable it is pure Python, for all
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parent / "src" / "tunecast" / "predict" / "_native.c"
MADE = SOURCE.with_suffix(".abi3.so")


def compile_native() -> None:
    """For the stable interface of Python 3.11 and later: one file serves them all."""
    compiler = os.environ.get("CC", "cc")
    include = sysconfig.get_path("include")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", f"-I{include}", str(SOURCE), "-o", str(MADE)], check=True)


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel" and os.environ.get("TUNECAST_NATIVE") == "1":
            compile_native()
            build_data["artifacts"].append(str(MADE.relative_to(Path(__file__).parent)))
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"], build_data["tag"] = False, f"cp311-abi3-{platform}"


if __name__ == "__main__":
    compile_native()
