"""Where calibrations are kept: one file a kind of card, in the user's own data folder.

$XDG_DATA_HOME/tunecast/calibrations/NAME.json      (else ~/.local/share, on Windows %LOCALAPPDATA%)
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved
from tunecast.predict.calibration import Calibration, calibration_from

MOST_BYTES = 1 << 20


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    home = environ.get("XDG_DATA_HOME") or environ.get("LOCALAPPDATA")
    return (Path(home) if home else Path("~/.local/share").expanduser()) / "tunecast" / "calibrations"


def path_of(gpu: str, environ: Mapping[str, str] = os.environ) -> Path:
    return folder(environ) / f"{re.sub(r'[^a-z0-9.-]+', '-', gpu.lower())}.json"


def keep(gpu: str, found: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Path:
    """Whole or not at all: a reader never sees half a file."""
    path = path_of(gpu, environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
        json.dump(found, file, indent=1)
    os.replace(file.name, path)
    return path


def kept(gpu: str, environ: Mapping[str, str] = os.environ) -> Calibration | None:
    """None where this machine was never calibrated."""
    path = path_of(gpu, environ)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise NotResolved(f"{path}: larger than a calibration can be. To fix: tunecast calibrate")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NotResolved(f"{path}: {error}. To fix: tunecast calibrate, or delete it") from error
    return calibration_from(found, str(found.get("measured", "")) if isinstance(found, dict) else "")
