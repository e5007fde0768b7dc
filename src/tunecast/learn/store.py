"""Where calibrations are kept: one file a kind of card, in the user's own data folder.

$XDG_DATA_HOME/tunecast/calibrations/NAME.json      (else ~/.local/share, on Windows %LOCALAPPDATA%)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from os.path import join
from typing import TYPE_CHECKING, Any

from tunecast.errors import NotResolved, TunecastError
from tunecast.home import data_folder

if TYPE_CHECKING:
    from pathlib import Path

    from tunecast.prediction.time.calibration import Calibration

MOST_BYTES = 1 << 20


def path_of(gpu: str, environ: Mapping[str, str] = os.environ) -> Path:
    from pathlib import Path  # every prediction asks whether there is one; hardly any needs more

    return Path(_place(gpu, environ))


def _place(gpu: str, environ: Mapping[str, str]) -> str:
    return join(data_folder(environ), "calibrations", f"{re.sub(r'[^a-z0-9.-]+', '-', gpu.lower())}.json")


def keep(gpu: str, found: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Path:
    from tunecast.job.writer import write_file

    path = path_of(gpu, environ)
    write_file(path, json.dumps(found, indent=1), folder_too=True)
    return path


def own_calibration(gpu: str, environ: Mapping[str, str] = os.environ) -> Calibration | None:
    """None where this machine was never calibrated."""
    try:
        os.stat(_place(gpu, environ))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):  # whoever reads it says why
        pass
    from tunecast.job.readers.bounds import bounded_text
    from tunecast.job.readers.json import parsed
    from tunecast.prediction.time.calibration import calibration_from

    path = path_of(gpu, environ)
    try:
        found = parsed(bounded_text(path, MOST_BYTES), str(path))
        return calibration_from(found, str(found.get("measured", "")) if isinstance(found, dict) else "")
    except TunecastError as error:
        told = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise NotResolved(f"{told}. To fix: tunecast calibrate, or delete it") from None
