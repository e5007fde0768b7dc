"""Which Python traces: one that has torch, and best the one the training will use."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tunecast.errors import NotResolved

ASK = "import importlib.util, sys; sys.exit(0 if importlib.util.find_spec('torch') else 1)"
ASK_LIMIT_S = 30.0
ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")


def tracing_python(given: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The interpreter asked for; else ours if it has torch, else that of the environment that is active.

    Ours may not be the user's: tunecast can be installed by itself (pipx, uv tool) beside an active environment.
    """
    if given is not None:
        found = shutil.which(os.path.expanduser(given))
        if found is None:
            raise NotResolved(f"--python: there is no interpreter {given!r}", field="--python")
        return found
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    for name in ENVIRONMENTS:
        root = (os.environ if environ is None else environ).get(name)
        python = str(Path(root) / "bin" / "python") if root else None
        if python and python != sys.executable and has_torch(python):
            return python
    raise NotResolved(
        f"tracing runs the real training code, and {sys.executable} has no torch. "
        "To fix: pip install torch transformers, or --python /path/to/your/training/environment/bin/python",
        field="--python",
    )


def has_torch(python: str) -> bool:
    """Looked for, not imported."""
    try:
        asked = subprocess.run([python, "-c", ASK], stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
