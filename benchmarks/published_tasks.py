"""What others state of preference tuning, rollouts and distillation, against what is predicted.

    python benchmarks/published_tasks.py        results/published_tasks.json, and a line a row

data/published_tasks.csv holds every such figure that was found, with its source, the job in tunecast's own words where
enough is told, and else why it is left out. ms-swift logs torch's reserved memory (`memory(GiB)`). What is compared, by
rules that were fixed before any prediction was made, and that look at none:

known      lengths are known: rows are packed full. A pack of preferences holds chosen and rejected answers together
           (swift/template/base.py of ms-swift, `_rlhf_encode` and `packing_row`), so a row has half of its length
bound      they are not: rows are taken to be as long as the file allows, so that no more can be needed than is said.
           Told apart, and in no median
fits       the source says only whether it ran out of memory
left out   with the reason: another task's code, the size of a card that is sold, settings or lengths that nobody tells

Where no card is named memory is that of an A100 of 80 GB, and time is not compared. What files ask for and no
field says moves memory a little: `rpo_alpha` of ms-swift, a second loss of the chosen answers.
A task whose program is not there yet is told by name and skipped.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
os.environ["HF_HUB_OFFLINE"] = "1"

from memory import commit  # noqa: E402
from timing import write_result  # noqa: E402

from tunecast.door.predict import predict  # noqa: E402
from tunecast.errors import TunecastError  # noqa: E402
from tunecast.units import GIB  # noqa: E402

Row = dict[str, Any]
DATA, RESULT = HERE / "data" / "published_tasks.csv", HERE / "results" / "published_tasks.json"
KINDS = {"reserved": "reserved_bytes", "allocated": "allocated_bytes", "nvidia-smi": "device_bytes"}


def published() -> list[Row]:
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def group_of(row: Row) -> str:
    return "left out" if row["left_out"] else "fits" if row["fits"] else str(row["lengths"])


def scored(row: Row) -> Row:
    """What was stated and what is predicted; or why nothing is."""
    known = {name: row[name] for name in ("id", "task", "framework", "source", "text")} | {"group": group_of(row)}
    if row["left_out"]:
        return {**known, "left_out": row["left_out"]}
    try:
        found = predict(json.loads(row["job"]), engine="analytic", once=True, timed=False)
        fits, memory = found.fits, found.memory
    except (NotImplementedError, ModuleNotFoundError):
        return {**known, "refused": f"task {row['task']} is not built yet"}
    except TunecastError as error:
        return {**known, "refused": error.message.splitlines()[0][:200]}
    except Exception as error:  # a fault of ours: told, and the others are compared
        return {**known, "refused": f"failed: {type(error).__name__} {error}"[:200]}
    if row["fits"]:
        return {**known, "stated": row["fits"] == "yes", "fits": fits, "right": fits == (row["fits"] == "yes")}
    told_gib, stated_gib = getattr(memory, KINDS[row["kind"]]) / GIB, float(row["gib"])
    return {
        **known,
        "exactness": found.exactness,
        "stated_gib": stated_gib,
        "predicted_gib": round(told_gib, 3),
        "off": round(told_gib / stated_gib - 1, 4),
    }


def summary(rows: Iterable[Row]) -> Row:
    """Of absolute errors where lengths are known; where they are bounds, how many say no less than was used."""
    every = list(rows)
    known = [abs(row["off"]) for row in every if row["group"] == "known" and "off" in row]
    bounds = [row["off"] for row in every if row["group"] == "bound" and "off" in row]
    verdicts = [row["right"] for row in every if "right" in row]
    return {
        "stated": len(every),
        "left_out": sum(row["group"] == "left out" for row in every),
        "refused": sorted({f"{row['id']}: {row['refused']}" for row in every if "refused" in row}),
        "known": {"rows": len(known), "median": round(statistics.median(known), 4) if known else None},
        "bound": {"rows": len(bounds), "not_below": sum(off >= 0 for off in bounds)},
        "fits": {"rows": len(verdicts), "right": sum(verdicts)},
    }


def main() -> None:
    rows = [scored(row) for row in published()]
    for row in rows:
        if row["group"] != "left out":
            said = row.get("refused") or row.get("off", row.get("right"))
            print(f"{row['id']:<24} {row['group']:<6} {said}")
    made = {"commit": commit(), **summary(rows)}
    print(json.dumps({name: value for name, value in made.items() if name != "refused"}))
    write_result(RESULT, {**made, "rows": rows})


if __name__ == "__main__":
    main()
