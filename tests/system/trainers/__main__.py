"""Rendered trainings, run by the packages they are rendered for, on CPUs and under the tracer.

    ./dev system trainers [--only FRAMEWORK[/NAME]]     each case of tests/system/trainers/cases.py
    ./dev system trainers --out FILE                    also write the result (the committed one:
                                                        results/trainers.json); its other rows stay

Model and data are made by the run, nothing is downloaded. Each package has an environment of its own under .venvs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from committed import commit

from trainers.cases import CASES, Case
from trainers.made import make
from trainers.one import environment_of, run_case
from trainers.published import differences

ENVIRONMENTS = {"torchtune": "torchtune", "llama-factory": "factory", "axolotl": "axolotl"}
"""By framework: the environment of ./dev that has it."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev system trainers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="cases whose names begin so")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep what is rendered and printed here")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the dated result goes")
    arguments = parser.parse_args(argv)
    folder = Path(os.environ["TUNECAST_VENVS"])
    chosen = [
        each
        for each in CASES
        if not arguments.only or f"{each.framework}/{each.name}".startswith(tuple(arguments.only))
    ]
    with tempfile.TemporaryDirectory(prefix="trainers-") as temporary:
        work = arguments.work or Path(temporary)
        os.environ["HF_HOME"] = str(work / "hub")
        made = make(work / "made")
        failed = differences()
        for each in failed:
            print(f"torchtune: {each}")
        for case in chosen:
            environment = environment_of(folder / ENVIRONMENTS[case.framework])
            found = run_case(case, made, work, environment)
            told = f"{found.trained}; resumed: {found.resumed or 'not tried'}; traced: {found.traced_bytes}"
            print(f"{case.framework}/{case.name}: {told} {found.difference}", flush=True)
            if not as_expected(case, asdict(found)):
                failed.append(case.name)
            if arguments.out is not None:
                row = {**asdict(found), "date": date.today().isoformat()}
                write(arguments.out, row, {case.framework: environment.releases})
    return int(bool(failed))


def as_expected(case: Case, row: Mapping[str, object] | None) -> bool:
    return row is not None and (not case.trained or str(row["trained"]).endswith("steps"))


def write(path: Path, row: dict[str, object], releases: dict[str, dict[str, str]]) -> None:
    """After each case: rows of others stay."""
    before = json.loads(path.read_text("utf-8")) if path.exists() else {"releases": {}, "trainings": []}
    named = {(each["framework"], each["name"]): each for each in (*before["trainings"], row)}
    order = [(case.framework, case.name) for case in CASES]
    rows = [named[each] for each in order if each in named]
    content = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "inputs": [f"{each['framework']}/{each['name']}" for each in rows],
        "failures": [case.name for case in CASES if not as_expected(case, named.get((case.framework, case.name)))],
        "releases": {**before["releases"], **releases},
        "trainings": rows,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
