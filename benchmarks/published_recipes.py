"""Memory and time that trainers' own files state, against what is predicted of the file: results/published_recipes.json.

    python benchmarks/published_recipes.py FOLDER      FOLDER/REPOSITORY/... as data/published_recipes.csv names them

data/published_recipes.csv holds what a file says of itself, with repository, commit, path and line. The files themselves
are others' and are not here: check the repositories out at those commits. The prediction comes through the reader
(`tunecast predict FILE`), told only the cards where the file leaves them out. ms-swift logs torch's reserved memory
(`memory(GiB)`), Unsloth's notebooks print torch.cuda.max_memory_reserved.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
os.environ["HF_HUB_OFFLINE"] = "1"

from timing import write_result  # noqa: E402

from tunecast.door.predict import predict  # noqa: E402
from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job.readers import read_job  # noqa: E402

Row = dict[str, Any]
GIB = 2**30
CARD_SIZES = {"24", "40", "48", "64", "80", "96", "141"}
"""What may be a card's size instead of what was used."""
CARDS = {"T4": "t4", "L4": "l4", "A100-SXM4-40GB": "a100-sxm-40gb", "A100-SXM4-80GB": "a100-sxm-80gb", "V100": "v100-sxm-16gb"}
UNNAMED = "a100-sxm-80gb"
"""Where the file names no card: memory hardly depends on it, and time is not compared."""


def card_of(text: str) -> str | None:
    return next((name for part, name in CARDS.items() if part in text), None)


def scored(row: Row, folder: Path) -> Row:
    """What the file says of itself and what is predicted of it; or why nothing is."""
    known = {name: row[name] for name in ("framework", "repo", "path", "line", "text")}
    card = card_of(row["gpu"])
    overrides: dict[str, object] = {"hardware.gpu": card or UNNAMED}
    try:
        job = read_job(str(folder / row["repo"] / row["path"]), overrides)
        if job.hardware.gpus * job.hardware.nodes != int(row["gpus"] or 1):
            overrides |= {"hardware.gpus": int(row["gpus"] or 1)}
        found = predict(str(folder / row["repo"] / row["path"]), overrides)
    except TunecastError as error:
        return {**known, "refused": error.message.splitlines()[0][:200]}
    stated, told = float(row["gib"]) * GIB, found.memory.reserved_bytes
    result = {**known, "stated_gib": float(row["gib"]), "reserved_gib": round(told / GIB, 3), "off": round(told / stated - 1, 4)}
    if row["step_s"] and card is not None and found.time is not None:
        result |= {"stated_s": float(row["step_s"]), "step_s": found.time.step_s}
        result["time_off"] = round(found.time.step_s / float(row["step_s"]) - 1, 4)
    return result
