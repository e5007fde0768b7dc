"""The table of docs/programs.md, from the committed result; part of `./dev docs`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "tests" / "system" / "results" / "programs.json"
PAGE = ROOT / "docs" / "programs.md"
FILES = (".py", ".ipynb", ".yml", ".yaml")
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
    ended = sum(row["finished"] for row in traced)
    yield f"{ended} of those traced ran to the end of their script, the others were stopped after two steps."
    commits = Counter(row["commit"] for row in found["programs"])
    rows = ", ".join(f"{number} at {commit[:10]}{commit[40:]}" for commit, number in commits.most_common())
    yield f"Commits of tunecast: {rows}."
    if count < listed:
        yield f"Listed in programs.toml and not in this result: {listed - count}."
    yield ""
    yield "| program | source | answer | steps | peak allocated | weights, gradients, states | by hand | CPU time |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in traced:
        persistent = ", ".join(size(row[f"{part}_bytes"]) for part in ("weights", "gradients", "optimizer"))
        yield (
            f"| {row['name']} | {source(row)} | {row['word']} | {steps(row)} | {size(row['allocated_bytes'])} "
            f"| {persistent} | {cell(row['by_hand'])} | {row['cpu_s']:.0f} s |"
        )
    yield ""
    yield "| refused | source | what it says | why |"
    yield "|---|---|---|---|"
    for row in refused:
        yield f"| {row['name']} | {source(row)} | {cell(row['message'])} | {cell(row['why'])} |"


def source(row: Row) -> str:
    version = row["version"]
    script = next((word for word in row["command"].split() if word.endswith(FILES)), "")
    return f"{row['source']} {version[:10]} `{script}`" if script else f"{row['source']} {version[:10]}"


def steps(row: Row) -> str:
    return f"all {row['steps']}" if row["finished"] else str(row["steps"])


def size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**28 else f"{nbytes / 2**20:.1f} MiB"


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    main()
