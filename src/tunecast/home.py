"""The user's own data folder: what was launched, measured, calibrated, learned and fetched lies below it."""

from __future__ import annotations

import os
from collections.abc import Mapping


def data_folder(environ: Mapping[str, str] = os.environ) -> str:
    """$XDG_DATA_HOME/tunecast, else ~/.local/share/tunecast; on Windows %LOCALAPPDATA%. A text: every prediction asks
    for it, and hardly any loads pathlib."""
    home = environ.get("XDG_DATA_HOME") or environ.get("LOCALAPPDATA") or os.path.expanduser("~/.local/share")
    return os.path.join(home, "tunecast")
