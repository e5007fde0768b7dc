"""The counts of docs/recipes.md, from results/recipes.json and results/published_recipes.json."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import table  # noqa: E402
from published_recipes import page  # noqa: E402

Row = dict[str, Any]
PAGE = HERE.parent / "docs" / "recipes.md"
WORST = 10
END = "<!-- end -->"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    parts = {"counted": "\n".join(counted(read("recipes"))), "stated": page(read("published_recipes")).rstrip()}
    for name, body in parts.items():
        before, mark, rest = re.split(rf"(<!-- {name}: [^\n]* -->\n)", text, maxsplit=1)
        text = f"{before}{mark}{body}\n{rest[rest.index(END) :]}"
    PAGE.write_text(text, encoding="utf-8")


def read(name: str) -> Row:
    found: Row = json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def counted(found: Row) -> Iterator[str]:
    whole = found["all"]
    yield (
        f"{whole['files']:,} training configurations of the frameworks' own repositories "
        "([which](../benchmarks/data/recipe_files.csv), with commit and path), each asked with one named card, eight "
        f"of them where the number matters. {whole['text_files']} train on text, SFT or pre-training. *Answered*: by "
        "`predict`. *By keys*: and no key made it an estimate. *Keys*: of those that matter, the share that is used "
        f"and not reported. *Any task*: {whole['task_files']} of text or images, SFT or another task; *understood*: "
        "as a job that contradicts nothing, *all answered*: by `predict`. *Others*: no such training (diffusion, "
        "drafts for speculative decoding, QAT, files that train nothing), refused by that name."
    )
    yield ""
    rows = [*found["frameworks"].items(), ("all", whole)]
    yield from table(
        ["framework", "files of text", "recognised", "answered", "by keys", "keys", "any task", "understood",
         "all answered", "others", "named"],
        [
            [
                name, f"{row['text_files']}", shown(row["recognised_share"]), shown(row["answered_share"]),
                shown(row["answered_by_keys_share"]), shown(row["keys_used_share"]), f"{row['task_files']}",
                shown(row["understood_share"]), shown(row["tasks_answered_share"]), f"{row['other_files']}",
                shown(row["others_named_share"]),
            ]
            for name, row in rows
        ],
    )  # fmt: skip
    yield ""
    yield (
        f"{whole['traceback'] or 'None'} ended in a traceback, {whole['over its limits'] or 'none'} over the limits of "
        "a minute of CPU time and 4 GiB. Most often not answered:"
    )
    yield ""
    for reason, files in list(whole["commonest"]["not answered"].items())[:WORST]:
        yield f"- {files}: {reason}"
    yield ""
    yield from counted_before(found)
    yield "Beyond SFT and pre-training on text, most often not answered:"
    yield ""
    for reason, files in list(whole["commonest"]["of any task, not answered"].items())[:WORST]:
        yield f"- {files}: {reason}"


def counted_before(found: Row) -> Iterator[str]:
    """Rows that were not predicted with the commit that the result names."""
    before = Counter(row["predicted_at"] for row in found["rows"] if "predicted_at" in row)
    if before:
        named = ", ".join(f"{files} at {commit}" for commit, files in before.most_common())
        yield f"Not all were predicted at {found['commit'][:8]}: {named}."
        yield ""


def shown(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    main()
