"""Training programs of other people, at named commits, under `tunecast trace`.

    ./dev system programs --repositories FOLDER         trace every program of tests/system/programs.toml
    ./dev system programs ... --only NAME               those whose name begins so
    ./dev system programs ... --out FILE                also write the result (the committed one:
                                                        results/programs.json); its other rows stay

FOLDER holds a git directory OWNER/NAME per repository. Programs are checked out of it into a temporary folder, data
sets and tokenizers are made there, and nothing is downloaded. One program runs at a time, at most 600 s and 10 GiB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from programs.manifest import MANIFEST, Program, read_programs
from programs.one import ROOT, NotHere, Outcome, Places, trace_program
from programs.stand_ins import make_stand_ins

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "datasets",
    "lightning",
    "sentence-transformers",
    "litgpt",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev system programs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repositories", type=Path, required=True, metavar="FOLDER", help="git directories")
    parser.add_argument("--only", action="append", metavar="NAME", help="programs whose names begin so")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep checkouts and data here")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the dated result goes")
    arguments = parser.parse_args(argv)
    chosen = [each for each in read_programs() if not arguments.only or each.name.startswith(tuple(arguments.only))]
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        work = arguments.work or Path(folder)
        places = Places(arguments.repositories.resolve(), work / "checkouts", work / "data")
        make_stand_ins(places)
        outcomes, at = [], commit()
        for program in chosen:
            outcome = try_program(program, places)
            outcomes += [outcome] if outcome else []
            if outcome and arguments.out:
                write_result(arguments.out, outcomes, at)
    unexpected = sum(bool(each.failure) for each in outcomes)
    traced = sum(bool(each.word) for each in outcomes)
    print(f"{len(outcomes)} programs: {traced} traced, {len(outcomes) - traced} refused, {unexpected} not as expected")
    return 1 if unexpected else 0


def try_program(program: Program, places: Places) -> Outcome | None:
    try:
        outcome = trace_program(program, places)
    except NotHere as error:
        print(f"{program.name}: left out. {error}", flush=True)
        return None
    gib = outcome.allocated_bytes / 2**30
    what = f"{outcome.word}, {gib:.2f} GiB, {outcome.steps} steps" if outcome.word else outcome.message
    print(f"{program.name}: {outcome.exit_code}, {outcome.cpu_s:.0f} s, {what}", flush=True)
    if outcome.failure:
        print(f"    NOT AS EXPECTED: {outcome.failure}. {outcome.message if outcome.word else ''}", flush=True)
    return outcome


def write_result(path: Path, outcomes: list[Outcome], at: str) -> None:
    """The programs in the manifest's order; of those that did not run now, what the file said."""
    before = json.loads(path.read_text(encoding="utf-8"))["programs"] if path.exists() else []
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in before}
    rows |= {each.name: {**asdict(each), "commit": at} for each in outcomes}
    programs = [rows[each.name] for each in read_programs() if each.name in rows]
    versions = {name: metadata.version(name) for name in PACKAGES}
    result = {
        "date": date.today().isoformat(),
        "commit": at,
        "inputs": {
            "file": str(MANIFEST.relative_to(ROOT)),
            "listed": len(read_programs()),
            "programs": len(programs),
            "packages": versions,
        },
        "failures": [f"{row['name']}: {row['failure']}" for row in programs if row["failure"]],
        "programs": programs,
    }
    path.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")


def commit() -> str:
    """Of this checkout; `-dirty` where something in it is changed."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
