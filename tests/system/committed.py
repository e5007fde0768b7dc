"""The commit that a run is of."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    git = ("git", "rev-parse", "HEAD")
    return subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
