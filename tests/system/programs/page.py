"""The table of docs/programs.md, from the committed result; part of `./dev docs`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "tests" / "system" / "results" / "programs.json"
PAGE = ROOT / "docs" / "programs.md"
START, END = "<!-- programs -->\n", "<!-- end -->"

Row = dict[str, Any]


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START, maxsplit=1)
    PAGE.write_text(f"{before}{START}{body()}\n{rest[rest.index(END) :]}", encoding="utf-8")


def body() -> str:
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    return "\n".join(lines(found))


def lines(found: Row) -> Iterator[str]:
    traced = [row for row in found["programs"] if row["word"]]
    refused = [row for row in found["programs"] if not row["word"]]
    packages = ", ".join(f"{name} {version}" for name, version in found["inputs"]["packages"].items())
    count, listed = len(found["programs"]), found["inputs"]["listed"]
    yield f"{len(traced)} of {count} programs were traced on {found['date']}, {len(refused)} refused. {packages}."
    if count < listed:
        yield f"{listed - count} more are listed in programs.toml and not in this result."
    yield ""
    yield "| program | source | answer | steps | peak allocated | weights, gradients, states | by hand | CPU time |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in traced:
        persistent = ", ".join(size(row[f"{part}_bytes"]) for part in ("weights", "gradients", "optimizer"))
        yield (
            f"| {row['name']} | {source(row)} | {row['word']} | {row['steps']} | {size(row['allocated_bytes'])} "
            f"| {persistent} | {cell(row['by_hand'])} | {row['cpu_s']:.0f} s |"
        )
    yield ""
    yield "| refused | source | what it says | why |"
    yield "|---|---|---|---|"
    for row in refused:
        yield f"| {row['name']} | {source(row)} | {cell(row['message'])} | {cell(row['why'])} |"


def source(row: Row) -> str:
    version = row["version"]
    script = next((word for word in row["command"].split() if word.endswith(".py")), "")
    return f"{row['source']} {version[:10]} `{script}`" if script else f"{row['source']} {version[:10]}"


def size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**28 else f"{nbytes / 2**20:.1f} MiB"


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    main()
