"""Opens training data, and prints the columns of the first row as JSON; none where there is no row.

python preflight_data.py train.jsonl
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

MOST_LETTERS = 1 << 24
"""Of the first row."""
BUILDERS = {".parquet": "parquet", ".arrow": "arrow"}
"""Of the `datasets` library, for what Python alone does not read."""
ENDINGS = (".jsonl", ".json", ".csv", ".txt", *BUILDERS)


def first_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(each for each in path.rglob("*") if each.suffix.lower() in ENDINGS)
    if not found:
        raise ValueError("a folder without a file of data")
    return found[0]


def first_columns(path: Path) -> list[str]:
    ending = path.suffix.lower()
    if ending in (".jsonl", ".json"):
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_LETTERS).lstrip()
        if not text:
            return []
        row, _ = json.JSONDecoder().raw_decode(text[1:].lstrip() if text.startswith("[") else text)
        if not isinstance(row, dict):
            raise ValueError("its first row is no object")
        return list(row)
    if ending == ".csv":
        with open(path, encoding="utf-8", newline="") as file:
            table = csv.reader(file)
            names, cells = next(table, []), next(table, [])
        return names if cells else []
    if ending == ".txt":
        return ["text"] if path.stat().st_size else []
    from datasets import load_dataset

    rows = load_dataset(BUILDERS.get(ending, "json"), data_files=str(path), split="train", streaming=True)
    return list(next(iter(rows), {}))


if __name__ == "__main__":
    print(json.dumps(first_columns(first_file(Path(sys.argv[1])))), flush=True)
    os._exit(0)  # Arrow's threads, still reading ahead, can abort an interpreter that takes itself apart
