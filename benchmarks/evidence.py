"""How many measured runs stand behind predictions, by card and stack; writes src/tunecast/prediction/evidence.csv.

    python benchmarks/evidence.py        after time_h200.py, time_public.py, time_vendor.py, memory.py, public.py and
                                         sharded_memory.py

Time: a run counts where its step is answered and is of what is predicted (`timing.is_of_something_else`); one H200's
runs with the error without the others of their model. Memory: reserved on the H200, elsewhere the kind the source
measured; by the closed form, which `plan` uses, and of runs predicted first with that first prediction. What was
measured both alone and in a sharded run is two runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import load  # noqa: E402
from time_ranges import without_their_card  # noqa: E402
from timing import is_of_something_else, rows_of  # noqa: E402

from tunecast.prediction.evidence import (  # noqa: E402
    COLUMNS,
    LOW_PRECISION,
    MEMORY,
    ONE,
    PER_ERROR,
    SEVERAL,
    SIXTEEN_BITS,
    TIME,
    family_of,
)

TABLE = HERE.parent / "src" / "tunecast" / "prediction" / "evidence.csv"
H200 = "h200-sxm-141gb"
SCRIPTS: Mapping[str, str] = {"trainer_full.py": "full", "trl_sft_lora.py": "lora", "loop_qlora.py": "qlora"}
"""Methods of the scripts of script_runs.jsonl."""
Row = dict[str, Any]
Key = tuple[str, ...]


class Measured(NamedTuple):
    key: Key
    """The columns before the errors."""
    error: float
    left_out: float | None = None


def key_of(kind: str, job: Row, by: str, card: str | None = None) -> Key:
    hardware = job.get("hardware", {})
    several = hardware.get("gpus", 1) * hardware.get("nodes", 1) > 1
    precision = LOW_PRECISION if job.get("matmul_dtype") else SIXTEEN_BITS
    family = family_of(job.get("stack", "transformers"))
    name = by.partition(",")[0]
    return (kind, card or hardware["gpu"], family, name, job["method"], precision, SEVERAL if several else ONE)


def measured() -> list[Measured]:
    return [*_timed_here(), *_timed_elsewhere(), *_memory_here(), *_memory_elsewhere(), *_memory_sharded()]


def _own_jobs() -> dict[str, Row]:
    names = ("h200_runs.jsonl", "generated_runs.jsonl", "closed_runs.jsonl")
    return {row["job"]["id"]: row["job"] for name in names for row in rows_of(name)}


def _timed_here() -> Iterator[Measured]:
    jobs = _own_jobs()
    for row in load("time_h200.json")["rows"]:
        if "left_out_error" in row:
            yield Measured(key_of(TIME, jobs[row["id"]], "transformers", H200), row["left_out_error"])


def _timed_elsewhere() -> Iterator[Measured]:
    rows = [*load("time_public.json")["rows"], *load("time_vendor.json")["rows"]]
    jobs = {row["id"]: row["job"] for name in ("public_runs.jsonl", "vendor_runs.jsonl") for row in rows_of(name)}
    left_out = without_their_card(rows)
    for row in rows:
        if "tunecast" in row["error"] and not is_of_something_else(row):
            key = key_of(TIME, jobs[row["id"]], row["stack"])
            yield Measured(key, row["error"]["tunecast"], left_out[row["id"]])


def _memory_here() -> Iterator[Measured]:
    jobs = _own_jobs()
    for row in load("memory_analytic.json")["rows"]:
        if "error" in row:
            yield Measured(key_of(MEMORY, jobs[row["id"]], "transformers", H200), row["error"]["reserved_bytes"])
    for name in ("generated_runs.jsonl", "closed_runs.jsonl", "script_runs.jsonl", "unsloth_runs.jsonl"):
        for row in rows_of(name):
            said, found = row.get("predicted"), row.get("measured", {})
            if said is not None and said["completed"] and found.get("completed"):
                job = row.get("job") or {"method": SCRIPTS.get(row["id"], "qlora")}
                stack = "unsloth" if name.startswith("unsloth") else "transformers"
                key = key_of(MEMORY, {**job, "stack": stack}, stack, H200)
                yield Measured(key, said["reserved_bytes"] / found["peak_reserved"] - 1)


def _memory_elsewhere() -> Iterator[Measured]:
    jobs = {row["id"]: row["job"] for row in rows_of("public_memory.jsonl")}
    for row in load("public_memory.json")["rows"]:
        if "tunecast" in row["error"] and "variant" not in row:
            yield Measured(key_of(MEMORY, jobs[row["id"]], row["stack"]), row["error"]["tunecast"])


def _memory_sharded() -> Iterator[Measured]:
    jobs = {row["id"]: row["job"] for row in rows_of("public_runs.jsonl")}
    for row in load("sharded_memory.json")["rows"]:
        if "tunecast" in row["error"]:
            yield Measured(key_of(MEMORY, jobs[row["id"]], row["stack"]), row["error"]["tunecast"])


def written(found: Iterable[Measured]) -> str:
    groups: dict[Key, list[Measured]] = {}
    for run in found:
        groups.setdefault(run.key, []).append(run)
    lines = [",".join(COLUMNS)]
    for key, runs in sorted(groups.items()):
        errors = _cell(run.error for run in runs)
        left_out = _cell(run.left_out for run in runs if run.left_out is not None)
        lines.append(",".join((*key, errors, left_out)))
    return "\n".join(lines) + "\n"


def _cell(errors: Iterable[float]) -> str:
    return " ".join(str(size) for size in sorted(round(abs(error) * PER_ERROR) for error in errors))


def main() -> None:
    TABLE.write_text(written(measured()))


if __name__ == "__main__":
    main()
