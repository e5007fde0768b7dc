"""Where calibrations are kept: one file a kind of card, in the user's own data folder.

$XDG_DATA_HOME/tunecast/calibrations/NAME.json      (else ~/.local/share, on Windows %LOCALAPPDATA%)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from os.path import expanduser, join
from typing import TYPE_CHECKING, Any

from tunecast.errors import NotResolved

if TYPE_CHECKING:
    from pathlib import Path

    from tunecast.predict.calibration import Calibration

MOST_BYTES = 1 << 20


def path_of(gpu: str, environ: Mapping[str, str] = os.environ) -> Path:
    from pathlib import Path  # every prediction asks whether there is one; hardly any needs more

    return Path(_place(gpu, environ))


def _place(gpu: str, environ: Mapping[str, str]) -> str:
    home = environ.get("XDG_DATA_HOME") or environ.get("LOCALAPPDATA") or expanduser("~/.local/share")
    return join(home, "tunecast", "calibrations", f"{re.sub(r'[^a-z0-9.-]+', '-', gpu.lower())}.json")


def keep(gpu: str, found: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Path:
    """Whole or not at all: a reader never sees half a file."""
    import tempfile

    path = path_of(gpu, environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
        json.dump(found, file, indent=1)
    os.replace(file.name, path)
    return path


def kept(gpu: str, environ: Mapping[str, str] = os.environ) -> Calibration | None:
    """None where this machine was never calibrated."""
    path = _place(gpu, environ)
    try:
        if os.stat(path).st_size > MOST_BYTES:
            raise NotResolved(f"{path}: larger than a calibration can be. To fix: tunecast calibrate")
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NotResolved(f"{path}: {error}. To fix: tunecast calibrate, or delete it") from error
    from tunecast.predict.calibration import calibration_from

    return calibration_from(found, str(found.get("measured", "")) if isinstance(found, dict) else "")
