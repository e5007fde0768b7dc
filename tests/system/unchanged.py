"""Whether a change of the code changed an answer: recorded jobs, predicted and planned again.

    ./dev system unchanged                  predict and plan everything that is recorded, and name what differs
    ./dev system unchanged --record         write down what is answered now, after a change that was meant to move it
    ./dev system unchanged --full FILE      also keep the answers themselves, to see what moved between two of them
    ./dev system unchanged --out FILE       also write the result, dated (the committed one: results/unchanged.json)

Every field of a job is given, releases too, so that another default or a newer release followed moves nothing here.
Compared are the figures of memory to the byte, and of each further part of `predict --json` and `plan --json` the
SHA-256 of its text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

from committed import commit

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "golden" / "data" / "unchanged.jsonl"
PARTS = (
    "fits",
    "fits_surely",
    "memory",
    "capacity_bytes",
    "smallest_capacity_bytes",
    "time",
    "utilization",
    "energy",
    "outside",
)
"""Of a prediction: what is said about it in words may be put better."""
LATER = frozenset({"exactness", "reasons", "outside"})
"""Keys of a prediction within a plan that came after the recording."""
PLAN_PARTS = ("best", "picks", "pareto", "choices", "refused", "limits", "prices")

Row = dict[str, Any]


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def as_recorded(value: Any) -> Any:
    """A plan's part without what its predictions did not have then."""
    if isinstance(value, list):
        return [as_recorded(each) for each in value]
    if not isinstance(value, dict):
        return value
    later = LATER if value.get("schema") == "tunecast.prediction/1" else frozenset()
    return {key: as_recorded(each) for key, each in value.items() if key not in later}


def nested(flat: Mapping[str, Any]) -> Row:
    """A job as a file holds it, of its fields by dotted name."""
    job: Row = {}
    for dotted, value in flat.items():
        section, _, leaf = dotted.rpartition(".")
        (job.setdefault(section, {}) if section else job)[leaf] = value
    return job


def recorded() -> tuple[Row, list[Row], list[Row]]:
    """The fields most jobs share, the jobs and the plans."""
    rows = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    return rows[0]["common"], [row for row in rows if "job" in row], [row for row in rows if "plan" in row]


def tunecast(*words: str) -> str:
    """What a command prints; exit codes from 2 on say no answer, and 3 and 4 are verdicts."""
    asked = [sys.executable, "-m", "tunecast", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_DATA_HOME": tempfile.gettempdir() + "/none"}
    return subprocess.run(asked, capture_output=True, text=True, env=environment).stdout


def predictions(jobs: list[Row]) -> list[Row]:
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(json.dumps(job) + "\n" for job in jobs)
        file.flush()
        return [json.loads(line) for line in tunecast("predict", file.name, "--json", "--no-calibration").splitlines()]


def plans(lines: list[str]) -> list[Row]:
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return [json.loads(text) for text in pool.map(lambda line: tunecast("plan", *line.split(), "--json"), lines)]


def summary(answer: Row, parts: tuple[str, ...]) -> Row:
    if "error" in answer:
        return {"error": answer["error"]["code"]}
    figures = {key: answer["memory"][key] for key in ("allocated_bytes", "reserved_bytes", "device_bytes")} if (
        "memory" in answer
    ) else {}  # fmt: skip
    return {**figures, **{part: digest(as_recorded(answer.get(part))) for part in parts}}


def differences(before: Row, now: Row) -> Iterator[str]:
    for key in before.keys() | now.keys():
        if before.get(key) != now.get(key):
            yield f"{key}: {before.get(key)} -> {now.get(key)}"


def result(jobs: int, plans: int, failures: list[str]) -> Row:
    """What is committed of a run: when, of which commit, over which inputs, and what moved."""
    content = RECORDED.read_bytes()
    inputs = {"file": str(RECORDED.relative_to(ROOT)), "sha256": hashlib.sha256(content).hexdigest()}
    today = date.today().isoformat()
    return {"date": today, "commit": commit(), "inputs": {**inputs, "jobs": jobs, "plans": plans}, "failures": failures}


def main(argv: Sequence[str] | None = None) -> int:
    asking = argparse.ArgumentParser(prog="./dev system unchanged", description=__doc__)
    asking.add_argument("--record", action="store_true", help="write down what is answered now")
    asking.add_argument("--full", metavar="FILE", help="keep the answers themselves, one per line")
    asking.add_argument("--every", type=int, default=1, metavar="N", help="every Nth job only, and no plans")
    asking.add_argument("--out", type=Path, metavar="FILE", help="where the dated result goes")
    arguments = asking.parse_args(argv)
    common, jobs, planned = recorded()
    jobs, planned = jobs[:: arguments.every], planned if arguments.every == 1 else []
    answers = predictions([nested({**common, **row["job"]}) for row in jobs])
    chosen = plans([row["plan"] for row in planned])
    if arguments.full:
        Path(arguments.full).write_text("".join(json.dumps(each) + "\n" for each in (*answers, *chosen)), "utf-8")
    now = [summary(answer, PARTS) for answer in answers] + [summary(plan, PLAN_PARTS) for plan in chosen]
    rows = [*jobs, *planned]
    if arguments.record:
        lines = [{"common": common}, *({**row, "answer": said} for row, said in zip(rows, now, strict=True))]
        RECORDED.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    moved: list[str] = []
    for row, said in zip(rows, now, strict=True):
        found, name = sorted(differences(row.get("answer", {}), said)), row.get("plan") or row["job"]["id"]
        moved += [name] if found else []
        for line in found:
            print(f"{name}: {line}")
    print(f"{len(jobs)} jobs and {len(planned)} plans: {len(moved)} differ from what is recorded")
    if arguments.out:
        text = json.dumps(result(len(jobs), len(planned), moved), indent=1)
        arguments.out.write_text(f"{text}\n", encoding="utf-8")
    return 0 if arguments.record or not moved else 1


if __name__ == "__main__":
    sys.exit(main())
