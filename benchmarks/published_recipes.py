"""Memory and time that trainers' files state of themselves, against what is predicted: results/published_recipes.json.

    python benchmarks/published_recipes.py FOLDER      FOLDER/REPOSITORY/... as data/published_recipes.csv names them
    python benchmarks/published_recipes.py --page      the section of docs/recipes.md, of the committed result

data/published_recipes.csv holds what a file says of itself, with repository, commit, path and line. The files
themselves are others' and are not here: check the repositories out at those commits. The prediction comes through
the reader (`tunecast predict FILE`), told the cards where the file leaves them out, and what was otherwise on the day
of the figure. ms-swift logs torch's reserved memory (`memory(GiB)`), Unsloth's notebooks print
torch.cuda.max_memory_reserved.

What was otherwise then (`as_of`): a notebook's log names Unsloth's release (`release`). Of ms-swift git says when a
line was written (`stated_on`): before torch 2.8 the Trainer's default was adamw_torch. `then` holds what a later line
of the file changed: examples/megatron/long_text.sh did not ask for expandable segments yet. Nothing is to be changed
for examples/megatron/lora/mtp.sh, whose --mtp_num_layers came after its figure and is not modelled.

What is compared, by rules that look at no prediction (the first two were fixed before any was made, the others after a
first run):

known      lengths are known: the file names a data set of job/lengths.toml, or packs its rows full
unknown    they are not: every row is taken to be as long as the file allows, which few are
shared     not compared: notebooks of different jobs print the same figures, which are of one of them at most
variants   not compared: the file states several figures of memory, each of a setting it does not hold at the same time
card size  not compared: ms-swift's figure is the size of a card that is sold, and may be that and no measurement
other job  not compared: the log in the notebook is of another model than its code (`other` says which)
A Kaggle copy of a notebook is the same run and counts once, as does a figure of memory that a file states twice. Time
is compared where the file names its card; an A100 that holds 50 GB is taken as SXM's of 80 GB.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
os.environ["HF_HUB_OFFLINE"] = "1"

from memory import commit  # noqa: E402
from timing import write_result  # noqa: E402

from tunecast.door.predict import predict  # noqa: E402
from tunecast.door.read import recipe  # noqa: E402
from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job.job import Job  # noqa: E402
from tunecast.job.readers import read_job  # noqa: E402
from tunecast.job.stacks import STACKS  # noqa: E402
from tunecast.units import GIB  # noqa: E402

Row = dict[str, Any]
RESULT = HERE / "results" / "published_recipes.json"
GROUPS = ("known", "unknown")
NOT_COMPARED = ("shared", "variants", "card size", "other job")
CARD_SIZES = {16, 24, 32, 40, 48, 64, 80, 96, 141}
COPY = "Kaggle-"
CARDS = {
    "T4": "t4",
    "L4": "l4",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "A100": "a100-sxm-80gb",
    "V100": "v100-sxm-16gb",
}
FUSED_SINCE = "2025-08-06"
"""torch 2.8, from which on the Trainer's default optimizer is fused (huggingface/transformers#37358)."""
UNNAMED = "a100-sxm-80gb"
"""Where the file names no card: memory hardly depends on it, and time is not compared."""


def card_of(text: str) -> str | None:
    return next((name for part, name in CARDS.items() if part in text), None)


def group_of(row: Row, job: Job, rows: list[Row]) -> str:
    """By the rules above."""
    if len({other["gib"] for other in rows if (other["repo"], other["path"]) == (row["repo"], row["path"])}) > 1:
        return "variants"
    if row["other"]:
        return "other job"
    if row["framework"] == "ms-swift" and float(row["gib"]) in CARD_SIZES:
        return "card size"
    alike = {notebook(other) for other in rows if other["step_s"] and figures(other) == figures(row)}
    if len(alike) > 1 and row["step_s"]:
        return "shared"
    return "known" if job.data.packing or job.data.has_lengths else "unknown"


def as_of(row: Row, job: Job, file: str) -> dict[str, object]:
    """Fields that were otherwise on the day of the figure."""
    then: dict[str, object] = dict(part.split("=") for part in row["then"].split())
    if row["release"] and job.stack == "unsloth":
        then["unsloth_version"] = row["release"]
    by_trainer = row["stated_on"] and STACKS[job.stack].uses_trainer
    if by_trainer and row["stated_on"] < FUSED_SINCE and "optimizer" in recipe(file).assumed:
        then["optimizer"] = "adamw_torch"
    return then


def figures(row: Row) -> tuple[str, ...]:
    return row["framework"], row["gib"], row["step_s"]


def notebook(row: Row) -> str:
    """Its name, which a copy shares."""
    return Path(row["path"]).name.removeprefix(COPY)


def scored(row: Row, rows: list[Row], folder: Path) -> Row:
    """What the file says of itself and what is predicted of it; or why nothing is."""
    known = {name: row[name] for name in ("framework", "repo", "path", "line", "text")}
    file, card = str(folder / row["repo"] / row["path"]), card_of(row["gpu"])
    overrides: dict[str, object] = {"hardware.gpu": card or UNNAMED}
    try:
        job = read_job(file, overrides)
        if job.hardware.gpus * job.hardware.nodes != int(row["gpus"] or 1):
            overrides |= {"hardware.gpus": int(row["gpus"] or 1)}
        overrides |= as_of(row, job, file)
        group = group_of(row, job, rows)
        if group not in GROUPS:
            return {**known, "group": group}
        found = predict(file, overrides, engine="analytic", once=True)
    except TunecastError as error:
        return {**known, "refused": error.message.splitlines()[0].replace(f"{folder}/", "")[:200]}
    told_gib = found.memory.reserved_bytes / GIB
    result = {
        **known,
        "group": group,
        "as_of": {name: value for name, value in overrides.items() if not name.startswith("hardware.")},
        "lengths": job.data.lengths if isinstance(job.data.lengths, str) else None,
        "stated_gib": float(row["gib"]),
        "reserved_gib": round(told_gib, 3),
        "off": round(told_gib / float(row["gib"]) - 1, 4),
    }
    if row["step_s"] and card is not None and found.time is not None:
        result |= {"gpu": card, "stated_s": float(row["step_s"]), "step_s": round(found.time.step_s, 3)}
        result["time_off"] = round(found.time.step_s / float(row["step_s"]) - 1, 4)
    return result


def summary(rows: list[Row], name: str) -> Row:
    offs = [abs(row[name]) for row in rows if name in row]
    if not offs:
        return {"rows": 0}
    return {
        "rows": len(offs),
        "median": round(statistics.median(offs), 4),
        "within_a_tenth": sum(off <= 0.1 for off in offs),
        "worst": max(offs),
    }


def by_group(rows: list[Row]) -> Row:
    return {
        framework: {
            "stated": sum(row["framework"] == framework for row in rows),
            "refused": sum(row["framework"] == framework and "refused" in row for row in rows),
            **{
                group: {"memory": summary(those, "off"), "time": summary(those, "time_off")}
                for group in GROUPS
                for those in [[row for row in rows if (row["framework"], row.get("group")) == (framework, group)]]
            },
            **{
                group: sum((row["framework"], row.get("group")) == (framework, group) for row in rows)
                for group in NOT_COMPARED
            },
        }
        for framework in sorted({row["framework"] for row in rows})
    }


def whole(rows: list[Row]) -> Row:
    """Of all files whose lengths are known."""
    known = [row for row in rows if row.get("group") == "known"]
    return {"memory": summary(known, "off"), "time": summary(known, "time_off")}


def page(result: Row) -> str:
    """The section of docs/recipes.md."""
    lines = [
        "## Files that state their own memory or time",
        "",
        "Notebooks of Unsloth and scripts of ms-swift say what their own run took. Each is read as it stands, on the",
        "card it names and as of the day of the figure (Unsloth's release, the Trainer's default optimizer), and",
        "compared with what it says: torch's reserved memory, and seconds per step where the card is named.",
        "`known`: the file packs its rows, or names a data set whose lengths come with tunecast; `unknown`: every row",
        "is taken to be as long as the file allows, which few are. Medians and worst are of absolute errors. Made by",
        "`python benchmarks/published_recipes.py --page`; every row: `benchmarks/results/published_recipes.json`.",
        "",
        "| framework | lengths | memory: files | median | within 10 % | worst | time: files | median | worst |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    parts = [(name, group, found[group]) for name, found in result["by_framework"].items() for group in GROUPS]
    for name, group, found in [("both", "known", result["known"]), *parts]:
        cells = [name, group, *cells_of(found["memory"], "median", "within_a_tenth", "worst")]
        lines.append(f"| {' | '.join([*cells, *cells_of(found['time'], 'median', 'worst')])} |")
    lines.append("")
    lines += [
        f"{framework}: {found['stated']} figures are stated; {found['refused']} are refused by their task or by what "
        f"is not modelled, {found['shared']} share theirs with other jobs, {found['variants']} are of several settings "
        f"of one file, {found['card size']} may be a card's size, {found['other job']} are of another job."
        for framework, found in result["by_framework"].items()
    ]
    worst = sorted((row for row in result["rows"] if row.get("group") == "known"), key=lambda row: -abs(row["off"]))
    lines += ["", "Of the known, worst first:", "", "| file | lengths | states | predicted | off | time off |"]
    lines.append("|---|---|---|---|---|---|")
    for row in worst:
        offs = [f"{row['off']:+.0%}", f"{row['time_off']:+.0%}" if "time_off" in row else ""]
        cells = [
            row["path"],
            row["lengths"] or "packed",
            f"{row['stated_gib']:.1f} GiB",
            f"{row['reserved_gib']:.1f} GiB",
        ]
        lines.append(f"| {' | '.join([*cells, *offs])} |")
    return "\n".join(lines) + "\n"


def cells_of(found: Row, *names: str) -> list[str]:
    if not found["rows"]:
        return ["0", *("" for _ in names)]
    return [str(found["rows"]), *(str(found[n]) if n == "within_a_tenth" else f"{found[n]:.0%}" for n in names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.folder is not None:
        with (HERE / "data" / "published_recipes.csv").open(encoding="utf-8", newline="") as file:
            given = list(csv.DictReader(file))
        own = [row for row in given if not Path(row["path"]).name.startswith(COPY)]
        once = list({(row["repo"], row["path"], row["gib"]): row for row in reversed(own)}.values())[::-1]
        rows = []
        for row in once:
            rows.append(scored(row, given, options.folder))
            print(json.dumps(rows[-1]), flush=True)
        rows.sort(key=lambda row: -abs(row.get("off", 0)))
        write_result(RESULT, {"commit": commit(), "known": whole(rows), "by_framework": by_group(rows), "rows": rows})
    if options.page:
        print(page(json.loads(RESULT.read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    main()
