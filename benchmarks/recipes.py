"""What is understood of the files that people train with, counted by framework: results/recipes.json.

    python benchmarks/recipes.py FOLDER             FOLDER/REPOSITORY/... as data/recipe_files.csv names them
    python benchmarks/recipes.py FOLDER --only axolotl --failing       of one framework, with each file not answered
    python benchmarks/recipes.py FOLDER --unanswered                   those alone that the result does not answer; the
                                                                       other rows stay, with the commit they are of

data/recipe_files.csv names 1,186 training configurations of 14 repositories with commit, path and what each trains for;
the files themselves are others' and are not here: check the repositories out at those commits. Each file is asked for
a recipe and a prediction on one named card (eight of them where the number matters), in a process bounded in time
and memory. Of the files of text SFT and pre-training:

recognised    some reader knows it as a training
answered      predict answers; `by keys`: and no key makes it an estimate
keys          values by dotted name: used, ignored because they move nothing, or reported as not understood

of files of any task, with images or without, but those in `OUT_OF_SCOPE`:

understood    the file makes a job that contradicts nothing
answered      predict answers

and of those in `OUT_OF_SCOPE`: refused by the task's name, or told to train nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import re
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil, lcm
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
os.environ["HF_HUB_OFFLINE"] = "1"

from memory import commit  # noqa: E402
from timing import write_result  # noqa: E402

from tunecast.door.predict import predict  # noqa: E402
from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job import recipes  # noqa: E402
from tunecast.job.readers import read_job  # noqa: E402
from tunecast.job.recipes.recipe import Recipe  # noqa: E402

Row = dict[str, Any]
CARD = "h100-sxm-80gb"
CARDS = 8
MOST_CPU_S = 60
MOST_BYTES = 4 * 2**30
OUTCOMES = ("answered", "failed", "other task", "not recognised", "unreadable", "traceback", "over its limits")
OUT_OF_SCOPE = (
    *("diffusion", "diffusion LM", "diffusiongemmasft", "speculative decoding", "sft (QAT)", "not training", "export"),
    *("script", "on a remote service"),
)
"""Tasks of files that make no text from text or images, imitate quantisation, train another model's helper, or train
nothing here."""
TEXT_TASKS = ("sft", "pretrain", "pretrain/sft", "benchmark (pretrain-like)")
FOLLOW_CARDS = ("hardware.gpus", "rl.generations", "rl.vllm.tensor")
"""Fields that may be wrong for one card and right for several."""
KINDS = ("used", "ignored", "not_understood")


def asked(path: Path) -> Row:
    """One file's row."""
    try:
        recipe = recipes.find_recipe(path)
    except TunecastError as error:
        outcome = "other task" if error.field == "task" else "unreadable"
        return {"outcome": outcome, "reason": error.message}
    if recipe is None:
        return {"outcome": "not recognised"}
    row = read_of(recipe)
    if recipe.refused:
        return {"outcome": "other task", "reason": recipe.refused, **row}
    return {**row, **answer(path, recipe)}


def read_of(recipe: Recipe) -> Row:
    return {
        "reader": recipe.framework,
        "model": recipe.job.get("model"),
        "keys": {kind: keys_of(getattr(recipe, kind)) for kind in KINDS},
    }


def over_its_limits(path: Path) -> Row:
    """What is known of a file whose answer took too much: reading it takes no time."""
    recipe = recipes.find_recipe(path)
    if recipe is None:
        return {"outcome": "over its limits"}
    understood = any(is_read(path, overrides) for overrides in cards_for(recipe))
    return {"outcome": "over its limits", "understood": understood, **read_of(recipe)}


def is_read(path: Path, overrides: dict[str, object]) -> bool:
    try:
        read_job(str(path), overrides)
    except TunecastError:
        return False
    return True


def keys_of(found: Iterable[Any]) -> list[str]:
    """Without the numbers of a list's members."""
    return sorted({re.sub(r"\.\d+(?=\.|$)", "[]", getattr(each, "key", each)) for each in found})


def answer(path: Path, recipe: Recipe) -> Row:
    understood = False
    for overrides in cards_for(recipe):
        row: Row
        try:
            read_job(str(path), overrides)
            understood = True
            found = predict(str(path), overrides, engine="analytic", once=True)
        except TunecastError as error:
            outcome = "other task" if error.field == "task" else "failed"
            reason = error.message.replace(f"{path}", path.name)
            row = {"understood": understood, "outcome": outcome, "reason": reason, "field": error.field}
            if error.field not in FOLLOW_CARDS:
                break
        else:
            found.to_dict()
            gib = round(found.memory.reserved_bytes / 2**30, 1)
            cards, task = found.job.hardware.cards, found.job.task
            row = {"outcome": "answered", "gib": gib, "cards": cards, "exactness": found.exactness, "job_task": task}
            return {"understood": True, **row}
    return row


def cards_for(recipe: Recipe) -> Iterator[dict[str, object]]:
    """What is said of cards where the file does not: one, then several, then one less, which serves the others."""
    hardware, parallel = (recipe.job.get(name) or {} for name in ("hardware", "parallel"))
    overrides: dict[str, object] = {} if hardware.get("gpu") else {"hardware.gpu": CARD}
    yield overrides
    of = {name: parallel.get(name) or 1 for name in ("tensor", "pipeline", "context", "expert")}
    split = of["tensor"] * of["pipeline"] * lcm(of["context"], of["expert"])
    yield {**overrides, "hardware.gpus": CARDS, "hardware.nodes": hardware.get("nodes") or ceil(split / CARDS)}
    yield {**overrides, "hardware.gpus": CARDS - 1}


def bounded(path: Path) -> Row:
    """The same, in a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_ask, args=(path, sender))
    process.start()
    sender.close()
    try:
        row: Row = receiver.recv()
    except EOFError:
        row = over_its_limits(path)
    process.join()
    return row


def _ask(path: Path, sender: Any) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES,) * 2)
    try:
        row = asked(path)
    except MemoryError:
        row = {"outcome": "over its limits"}
    except Exception:
        row = {"outcome": "traceback", "reason": traceback.format_exc(limit=-4)}
    sender.send(row)


def summary(rows: list[Row]) -> Row:
    """Of one framework, or of all."""
    outcomes = Counter(row["outcome"] for row in rows)
    text = [row for row in rows if row["text"]]
    others = [row for row in rows if row["task"] in OUT_OF_SCOPE]
    every = [row for row in rows if row["task"] not in OUT_OF_SCOPE]
    recognised = [row for row in text if "keys" in row]
    answered = [row for row in text if row["outcome"] == "answered"]
    keys = {kind: sum(count_of(row["keys"][kind]) for row in recognised) for kind in KINDS}
    return {
        "files": len(rows),
        **{outcome: outcomes[outcome] for outcome in OUTCOMES},
        "text_files": len(text),
        "recognised_share": share(len(recognised), len(text)),
        "answered_share": share(len(answered), len(text)),
        "answered_by_keys_share": share(sum(not row["keys"]["not_understood"] for row in answered), len(text)),
        "keys": keys,
        "keys_used_share": share(keys["used"], keys["used"] + keys["not_understood"]),
        "task_files": len(every),
        "understood_share": share(sum(is_understood(row) for row in every), len(every)),
        "tasks_answered_share": share(sum(row["outcome"] == "answered" for row in every), len(every)),
        "other_files": len(others),
        "others_named_share": share(sum(row["outcome"] == "other task" for row in others), len(others)),
        "commonest": {
            "keys not understood": commonest(key for row in recognised for key in row["keys"]["not_understood"]),
            "not answered": commonest(reason(row) for row in text if row["outcome"] != "answered"),
            "of any task, not answered": commonest(
                f"{row['task']}, {row['modality']}: {reason(row)}"
                for row in every
                if not row["text"] and row["outcome"] != "answered"
            ),
            "others, not named": commonest(
                f"{row['task']}, {row['modality']}: {row['outcome']}"
                for row in others
                if row["outcome"] != "other task"
            ),
        },
    }


def count_of(keys: list[str] | int) -> int:
    """Of a row that was made now, or that `briefly` wrote."""
    return keys if isinstance(keys, int) else len(keys)


def is_understood(row: Row) -> bool:
    return bool(row.get("understood"))


def by_task(rows: list[Row]) -> dict[str, Row]:
    """Of every framework's tasks in scope: files, understood, answered."""
    found: dict[str, Row] = {}
    for row in rows:
        if row["task"] in OUT_OF_SCOPE:
            continue
        name = f"{row['framework']}: {row['task']}, {row['modality']}"
        counts = found.setdefault(name, {"files": 0, "understood": 0, "answered": 0})
        counts["files"] += 1
        counts["understood"] += is_understood(row)
        counts["answered"] += row["outcome"] == "answered"
    return dict(sorted(found.items()))


def share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def reason(row: Row) -> str:
    """Its first line, without where in the file it is said, which differs from file to file."""
    if "reason" not in row:
        return str(row["outcome"])
    if any(told in row["reason"] for told in ("not in the local cache", "allowed: a bundled name")):
        return f"the model is not known here: {row['model']}"[:160]
    return re.sub(r"^\S+?(:\d+ \S+)?: ", "", row["reason"].partition("\n")[0])[:160]


def commonest(found: Iterable[str], most: int = 25) -> dict[str, int]:
    return dict(Counter(found).most_common(most))


def told(framework: str, found: Row) -> Iterator[str]:
    shares = {name: "-" if (value := found[name]) is None else f"{value:.1%}" for name in found if "share" in name}
    yield (
        f"{framework}: {found['files']} files; "
        + ", ".join(f"{found[outcome]} {outcome}" for outcome in OUTCOMES if found[outcome])
        + f"; of {found['text_files']} of text: recognised {shares['recognised_share']}"
        + f", answered {shares['answered_share']}, by keys {shares['answered_by_keys_share']}"
        + f", keys used {shares['keys_used_share']} of those that matter"
        + f"; of {found['task_files']} of any task: understood {shares['understood_share']}"
        + f", answered {shares['tasks_answered_share']}"
        + f"; of {found['other_files']} others named {shares['others_named_share']}"
    )


def told_why(found: Row) -> Iterator[str]:
    for title, reasons in found["commonest"].items():
        for text, count in list(reasons.items())[:15]:
            yield f"  {count:4} {title}: {text}"


def briefly(row: Row) -> Row:
    """A row of the result: of keys that are used or ignored, only how many."""
    keys = {kind: names if kind == "not_understood" else count_of(names) for kind, names in row.get("keys", {}).items()}
    return {**row, "keys": keys} if keys else row


def answered_before() -> dict[tuple[str, str], Row]:
    """Rows of the result that no change is expected of, with the commit each is of."""
    found: Row = json.loads((HERE / "results" / "recipes.json").read_text(encoding="utf-8"))
    return {
        (row["repo"], row["path"]): {"predicted_at": found["commit"][:8], **row}
        for row in found["rows"]
        if row["outcome"] == ("other task" if row["task"] in OUT_OF_SCOPE else "answered")
    }


def is_text(row: Row) -> bool:
    return row["modality"] == "text" and row["task"] in TEXT_TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", metavar="FRAMEWORK", help="and write no result")
    parser.add_argument("--not-text", action="store_true", help="without SFT and pre-training on text, and no result")
    parser.add_argument("--failing", action="store_true", help="name each file that is not answered, and why")
    parser.add_argument("--unanswered", action="store_true", help="ask again what the result does not answer")
    arguments = parser.parse_args()
    kept = answered_before() if arguments.unanswered else {}
    with (HERE / "data" / "recipe_files.csv").open(encoding="utf-8", newline="") as file:
        given = [
            row
            for row in csv.DictReader(file)
            if arguments.only in (None, row["framework"]) and not (arguments.not_text and is_text(row))
        ]
    predict({"model": "llama-3.2-1b"}).to_dict()  # imports once what every file's process needs
    rows: list[Row] = [
        {
            **{name: row[name] for name in ("framework", "repo", "path", "task", "modality")},
            "text": is_text(row),
            **(kept.get((row["repo"], row["path"])) or bounded(arguments.folder / row["repo"] / row["path"])),
        }
        for row in given
    ]
    names = sorted({row["framework"] for row in rows})
    by_framework = {name: summary([row for row in rows if row["framework"] == name]) for name in names}
    for name, found in by_framework.items():
        print("\n".join((*told(name, found), *told_why(found))))
    whole = summary(rows)
    print("\n".join(told("all", whole)))
    for name, counts in by_task(rows).items():
        print(f"  {name}: {counts['answered']} answered, {counts['understood']} understood of {counts['files']}")
    if arguments.failing:
        for row in rows:
            if row["outcome"] != ("other task" if row["task"] in OUT_OF_SCOPE else "answered"):
                print(f"{row['repo']}/{row['path']}: {row['task']}: {row['outcome']}: {row.get('reason', '')}")
    if not arguments.only and not arguments.not_text:
        result = {
            **{"commit": commit(), "all": whole, "frameworks": by_framework, "tasks": by_task(rows)},
            "rows": list(map(briefly, rows)),
        }
        write_result(HERE / "results" / "recipes.json", result)


if __name__ == "__main__":
    main()
