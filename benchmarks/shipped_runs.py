"""The measured runs of this repository as records `tunecast.run/1`, which come with the package.

    python benchmarks/shipped_runs.py      after time_h200.py, memory.py, time_public.py, time_vendor.py, public.py,
    sharded_memory.py

Writes src/tunecast/learn/shipped_runs.jsonl.gz (`tunecast runs export --shipped`; docs/data_card.md says what is in it)
and src/tunecast/prediction/lessons/measured_runs.csv, what a job's nearest runs are found by. `predicted` is what the
committed results hold of this tree; of runs that were drawn, the prediction from before they ran where no result
holds a later one.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import load  # noqa: E402
from job_sets import CAPACITIES, DEVELOPMENT, SCORED  # noqa: E402
from timing import is_of_something_else, rows_of, run_models  # noqa: E402

from tunecast import __version__  # noqa: E402
from tunecast.hardware.catalog import gpu as gpu_named  # noqa: E402
from tunecast.learn.comparing import errors_of, traits_of_record  # noqa: E402
from tunecast.learn.record import run_from  # noqa: E402
from tunecast.learn.recordable import shape_from  # noqa: E402
from tunecast.prediction.evidence import PER_ERROR  # noqa: E402
from tunecast.prediction.lessons.nearest import COLUMNS  # noqa: E402

PACKAGE = HERE.parent / "src" / "tunecast"
RECORDS = PACKAGE / "learn" / "shipped_runs.jsonl.gz"
TABLE = PACKAGE / "prediction" / "lessons" / "measured_runs.csv"
H200, DEVICE, DRIVER = "h200-sxm-141gb", "NVIDIA H200", "580"
OWN: Mapping[str, str] = {
    "h200_runs": "2026-11-15", "generated_runs": "2026-11-15", "closed_runs": "2026-11-15", "edge_runs": "2026-11-16",
    "edge2_runs": "2026-11-16", "tasks_runs": "2026-11-17", "tasks2_runs": "2026-11-17",
}  # fmt: skip
"""Files of single runs, and the day they were committed: rows do not say when they ran."""
JOBS: Mapping[str, str] = {
    "job_runs": "2026-11-16", "job_runs_dev": "2026-11-16", "job_runs_fresh": "2026-11-16",
}  # fmt: skip
SCRIPTS: Mapping[str, str] = {"files_runs": "2026-11-17", "programs_on_card_runs": "2026-11-18"}
PUBLISHED = "2026-11-15"
"""The day on which rows were collected whose source has no date."""
SOFTWARE = {
    "torch": "2.11.0", "transformers": "5.17.0", "peft": "0.21.0", "bitsandbytes": "0.50.2", "liger_kernel": "0.8.5",
}  # fmt: skip
UNKNOWN_CARDS = ("gaudi2",)
"""Cards of published rows whose runs are not shipped."""
Row = dict[str, Any]


def record(id: str, file: str, day: str, **parts: Any) -> Row:
    made = {
        "schema": "tunecast.run/1",
        "id": sha256(f"{file} {id}".encode()).hexdigest()[:32],
        "source": "shipped",
        "state": "done",
        "began": f"{day}T00:00:00Z",
        "note": f"{id} of {file}",
        "tunecast": __version__,
        **parts,
    }
    return run_from(made).to_dict()


def median_step(measured: Row) -> float | None:
    """After the first two, as `tunecast.run/1` has it; of one figure that figure."""
    taken = measured.get("step_s")
    if not isinstance(taken, list):
        return taken
    later = sorted(taken[2:])
    return later[len(later) // 2] if later else None


def own_hardware() -> Row:
    return {"gpu": H200, "device": DEVICE, "gpus": 1, "nodes": 1, "driver": DRIVER}


def own_software(job: Row | None, measured: Row) -> Row:
    """Packages a job needs; of torch what the run said."""
    made = {"torch": measured.get("torch", SOFTWARE["torch"]), "transformers": SOFTWARE["transformers"]}
    if job is None:
        return made
    if job.get("method") in ("lora", "qlora"):
        made["peft"] = SOFTWARE["peft"]
    if job.get("method") == "qlora" or "8bit" in str(job.get("optimizer")) or "paged" in str(job.get("optimizer")):
        made["bitsandbytes"] = SOFTWARE["bitsandbytes"]
    if "liger" in (job.get("kernels") or ()):
        made["liger_kernel"] = SOFTWARE["liger_kernel"]
    return made


def own() -> Iterator[Row]:
    times = {row["id"]: row for row in load("time_h200.json")["rows"]}
    memories = {row["id"]: row for row in load("memory_analytic.json")["rows"]}
    for file, day in OWN.items():
        for row in rows_of(f"{file}.jsonl"):
            job, measured = row["job"], row.get("measured")
            if measured is None:  # drawn, and never run
                continue
            id = job["id"]
            said = dict(row.get("predicted") or {})
            if said.pop("completed", True) is False:
                said = {}
            later = memories.get(id, {}) if file == "h200_runs" else {}
            said |= later.get("predicted") or {}
            if "predicted_s" in times.get(id, {}):
                said["step_s"] = times[id]["predicted_s"]
            if said and "exactness" not in said:
                said["exactness"] = "estimate" if later.get("guesses") or row.get("guesses") else "exact"
            done = bool(measured.get("completed"))
            failed = "oom" if measured.get("oom") or not measured.get("error") else "failed"
            steps = measured.get("step_s")
            yield record(
                id, file, day,
                state="done" if done else failed,
                job={**job, "hardware": {**job.get("hardware", {}), "gpu": H200}},
                model_shape=None if "config" not in row else shape_from(row["config"]),
                hardware=own_hardware(),
                software=own_software(job, measured),
                memory={
                    "allocated_bytes": measured.get("peak_alloc"), "reserved_bytes": measured.get("peak_reserved"),
                    "device_bytes": measured.get("device_used"),
                    "capacity_bytes": job.get("hardware", {}).get("capacity_bytes"),
                },
                time={
                    "step_s": median_step(measured),
                    "first_step_s": steps[0] if isinstance(steps, list) and steps else None,
                    "steps": len(steps) if isinstance(steps, list) else None,
                },
                predicted=said or None,
            )  # fmt: skip


def whole_jobs() -> Iterator[Row]:
    """Of the Trainer and TRL's SFTTrainer, with the job's own lengths."""
    sets = [*DEVELOPMENT, *SCORED, *CAPACITIES["development"], *CAPACITIES["scored"]]
    cases = {case["id"]: case["job"] for case in sets}
    first = {row["id"]: row for row in rows_of("job_predictions.jsonl")}
    for file, day in JOBS.items():
        for row in rows_of(f"{file}.jsonl"):
            job = cases.get(row["id"].removeprefix("traced-"))
            if job is None:
                continue
            ends = [end for end, *_ in row["step_ends"]]
            steps = sorted(after - before for before, after in pairwise(ends[1:]))
            said = first.get(row["id"]) if file == "job_runs" else None
            predicted = None
            if said is not None:
                memory, time = said["memory"], said["time"]
                predicted = {
                    **{name: memory[name] for name in ("allocated_bytes", "reserved_bytes", "device_bytes")},
                    "device_range_bytes": memory["range_bytes"]["device"], "step_s": time["step_s"],
                    "low_s": time["low_s"], "high_s": time["high_s"], "total_s": time["total_s"],
                    "total_range_s": time.get("total_range_s"),
                }  # fmt: skip
            yield record(
                row["id"], file, day, job=job, hardware=own_hardware(), software=own_software(job, row),
                memory={
                    "allocated_bytes": row["allocated_bytes"], "reserved_bytes": row["reserved_bytes"],
                    "device_bytes": row["device_bytes"], "retries": row["retries"],
                },
                time={
                    "steps": row["steps"], "step_s": steps[len(steps) // 2] if steps else None,
                    "first_step_s": ends[0] if ends else None, "total_s": row.get("process_s"),
                    "phases_s": {name: row["phases_s"].get(name) for name in ("load", "training")},
                },
                predicted=predicted,
            )  # fmt: skip


def scripts() -> Iterator[Row]:
    """Training files and other people's programs, of which there is no job: memory, and the time of training."""
    for file, day in SCRIPTS.items():
        known = {
            row.get("file") or row["name"]: row for row in rows_of(file.replace("_runs", "_predictions") + ".jsonl")
        }
        for row in rows_of(f"{file}.jsonl"):
            name = row.get("file") or row["name"]
            said = known.get(name, {})
            yield record(
                name, file, day, hardware=own_hardware(), software={"torch": row.get("torch", SOFTWARE["torch"])},
                memory={"allocated_bytes": row["allocated_bytes"], "reserved_bytes": row["reserved_bytes"]},
                time={"steps": row["steps"], "phases_s": {"training": row["training_s"]}},
                predicted={
                    "allocated_bytes": said.get("allocated_bytes"), "reserved_bytes": said.get("reserved_bytes"),
                    "exactness": said.get("exactness") or said.get("word"),
                } if said else None,
            )  # fmt: skip


MEMORIES = {"allocated": "allocated_bytes", "reserved": "reserved_bytes", "device": "device_bytes"}


def published() -> Iterator[Row]:
    """Steps and memory that others published."""
    sharded = {row["id"]: row for row in load("sharded_memory.json")["rows"]}
    for file, results in (("public_runs", "time_public.json"), ("vendor_runs", "time_vendor.json")):
        times = {row["id"]: row for row in load(results)["rows"]}
        for row in rows_of(f"{file}.jsonl"):
            timed, held = times.get(row["id"], {}), sharded.get(row["id"], {}) if file == "public_runs" else {}
            said = {**_said(held), **_said(timed)}
            found = row["measured"].get("memory") or {}
            name = MEMORIES.get(found.get("kind", ""))
            if row["job"]["hardware"]["gpu"] in UNKNOWN_CARDS:
                continue
            yield published_record(
                row, file, _day(row["source"][-1]), said,
                memory={} if name is None else {name: found["bytes"]},
                time={"step_s": row["measured"].get("step_s")},
            )  # fmt: skip
    alone = {row["id"]: row for row in load("public_memory.json")["rows"] if "variant" not in row}
    for row in rows_of("public_memory.jsonl"):
        name = MEMORIES.get(row["measured"]["kind"])
        if name is not None:
            memory = {name: row["measured"]["bytes"]}
            day = _day(row["source"]["date"])
            yield published_record(row, "public_memory", day, _said(alone.get(row["id"], {})), memory=memory, time={})


def published_record(row: Row, file: str, day: str, said: Row, **measured: Row) -> Row:
    hardware = row["job"]["hardware"]
    shape = run_models().get(row["job"]["model"])
    return record(
        row["id"], file, day,
        job=row["job"],
        model_shape=None if shape is None else shape_from(shape["config"]),
        hardware={
            "gpu": gpu_named(hardware["gpu"]).name, "gpus": hardware.get("gpus", 1), "nodes": hardware.get("nodes", 1),
        },
        predicted=said or None,
        **measured,
    )  # fmt: skip


def _said(row: Row) -> Row:
    found = row.get("said", {}).get("tunecast", {})
    names = ("allocated_bytes", "reserved_bytes", "device_bytes", "step_s", "low_s", "high_s")
    return {name: found[name] for name in names if name in found}


def _day(given: object) -> str:
    text = str(given)
    return text if len(text) == 10 and text[4] == text[7] == "-" else PUBLISHED


def records() -> list[Row]:
    """In the order of their files."""
    return [*own(), *whole_jobs(), *scripts(), *published()]


def lines(found: Iterable[Row]) -> bytes:
    """Without what is not known: half the size, and read back the same."""
    return b"".join(json.dumps(_known(each), separators=(",", ":")).encode() + b"\n" for each in found)


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: each if name in AS_IT_IS else _known(each) for name, each in value.items() if each is not None}
    return value


AS_IT_IS = ("job", "model_shape")
"""In which null is a value."""


def table(found: Iterable[Row]) -> str:
    """What a job's nearest runs are found by, of runs that were measured and predicted."""
    elsewhere = {
        row["id"]
        for name in ("time_public.json", "time_vendor.json")
        for row in load(name)["rows"]
        if is_of_something_else(row)
    }
    made = [",".join(COLUMNS)]
    for each in found:
        id = each["note"].split(" of ")[0]
        traits = traits_of_record(each)
        memory, time = errors_of(each)
        if traits is None or (memory is None and time is None) or id in elsewhere:
            continue
        cells = [
            traits.card, traits.generation, traits.family, traits.cards, traits.precision, traits.method, traits.task,
            id.replace(",", ";"), traits.model, "" if traits.size is None else f"{traits.size:.1f}",
            f"{traits.tokens:.1f}",
            str(int(traits.recomputes)), _cell(memory), _cell(time),
        ]  # fmt: skip
        made.append(",".join(cells))
    return "\n".join(made) + "\n"


def _cell(error: float | None) -> str:
    return "" if error is None else str(round(PER_ERROR * error))


def main() -> None:
    found = records()
    packed = gzip.compress(lines(found), 9, mtime=0)
    RECORDS.write_bytes(packed)
    TABLE.write_text(table(found))
    print(f"{len(found)} runs, {len(packed):,} bytes; {TABLE.stat().st_size:,} bytes of table")


if __name__ == "__main__":
    main()
