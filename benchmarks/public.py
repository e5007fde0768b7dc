"""Predicted against published memory: the rows of data/public_memory.jsonl; writes `results/public_memory.json`.

    python benchmarks/public.py --peers ENV/bin/python                   the closed form, and the peers in the same run
    python benchmarks/public.py --engine traced --python TORCH/bin/python

ENV holds fitcheck-llm and vramcalc (`peers.py`). A row is compared in the kind of memory its source measured; one that
cannot be predicted stays in the result with the reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402
from peers import PEERS, answers, versions  # noqa: E402
from public_figures import KIND_FIELDS, groups, promises  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job import Job, job_from_dict  # noqa: E402
from tunecast.job.model import bundled_models, resolve_model  # noqa: E402
from tunecast.prediction.engines import predict  # noqa: E402

FIELDS = ("allocated_bytes", "reserved_bytes", "device_bytes")
Row = dict[str, Any]


def published() -> list[Row]:
    return [json.loads(line) for line in (HERE / "data" / "public_memory.jsonl").read_text().splitlines()]


def job_of(row: Row) -> Row:
    """The job's fields.

    Where lengths vary they are those of micro-batches, and a job's hold for a whole optimizer step: one micro-batch a
    step puts them behind each other as they were.
    """
    return {**row["job"], **({"grad_accum": 1} if row["job"].get("lengths") else {})}


class Predictor:
    """Asks an engine, each distinct job once: some runs were published twice."""

    def __init__(self, engine: str, **how: Any) -> None:
        self.engine, self.how = engine, how
        self._known: dict[Job, Row] = {}

    def __call__(self, values: Row) -> Row:
        try:
            job = job_from_dict(values)
        except TunecastError as error:
            return {"refused": error.message}
        key = dataclasses.replace(job, id=None)
        if key not in self._known:
            self._known[key] = self._said(job)
        return self._known[key]

    def _said(self, job: Job) -> Row:
        start = time.perf_counter()
        try:
            done = predict(job, engine=self.engine, **self.how)
            memory = done.memory  # the whole prediction has the least capacity too, which takes longer
        except TunecastError as error:
            return {"refused": error.message}
        guessed = {"guessed": list(done.on_card.guesses)} if done.on_card.guesses else {}
        seconds = round(time.perf_counter() - start, 3)
        return {name: getattr(memory, name) for name in FIELDS} | guessed | {"seconds": seconds}


def compared(row: Row, said: dict[str, Row]) -> Row:
    """One row of the result: in its own kind, and in device memory where nvidia-smi was read too."""
    measured = row["measured"]
    field = KIND_FIELDS[measured["kind"]]
    out: Row = {
        "id": row["id"],
        "stack": row["job"]["stack"],
        "kind": measured["kind"],
        "about": described(row),
        "measured_bytes": measured["bytes"],
        "resolution_bytes": measured["resolution_bytes"],
        "said": said,
        "error": {tool: answer[field] / measured["bytes"] - 1 for tool, answer in said.items() if field in answer},
    }
    if "device_bytes" in measured:
        out["measured_device_bytes"] = measured["device_bytes"]
        out["device_error"] = {
            tool: answer["device_bytes"] / measured["device_bytes"] - 1
            for tool, answer in said.items()
            if "device_bytes" in answer
        }
    return out | {name: row[name] for name in ("variant", "doubts") if name in row}


def described(row: Row) -> str:
    job = row["job"]
    longest = max(job.get("lengths") or (job["seq_len"],))
    words = [job["model"], job["method"], f"b{job['micro_batch']}", f"s{longest}", job["optimizer"]]
    words += [f"r{job['lora']['rank']}"] if job.get("lora") else []
    words += [job["quantization"]["format"]] if job.get("quantization") else []
    words += ["recomputed"] if job["gradient_checkpointing"] else []
    words += ["compiled"] if job["compile"] else []
    return " ".join([*words, *job["kernels"], *([row["variant"].split(":")[0]] if "variant" in row else [])])


PEER_FORMATS = (None, "nf4", "fp4", "int8")


def asked_of_peers(rows: list[Row], python: str) -> list[Row]:
    """The peers' answers, in order. What a job says that no tool but the stack itself knows is taken out first."""
    asked, places = [], []
    for place, row in enumerate(rows):
        values = dict(row["job"], kernels=[])
        if values.get("quantization", {}).get("format") not in PEER_FORMATS:
            continue
        job = job_from_dict(values)
        parameters = bundled_models()[job.model].get("parameters")
        asked.append((job.flat(), resolve_model(job.model).raw, parameters))
        places.append(place)
    said: list[Row] = [{peer: {"refused": "no GPTQ base"} for peer in PEERS} for _ in rows]
    for place, answer in zip(places, answers(asked, python), strict=True):
        said[place] = answer
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="analytic")
    parser.add_argument("--python", help="interpreter with torch, for --engine traced")
    parser.add_argument("--peers", help="interpreter with fitcheck-llm and vramcalc; without it they are not asked")
    parser.add_argument("--only", default="", help="rows whose id contains this; prints, writes nothing")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "public_memory.json")
    options = parser.parse_args()
    how = {"python": options.python} if options.python else {}
    rows = [row for row in published() if options.only in row["id"]]
    peers: list[Row] = asked_of_peers(rows, options.peers) if options.peers else [{} for _ in rows]
    ask, found = Predictor(options.engine, **how), []
    for row, others in zip(rows, peers, strict=True):
        done = compared(row, {"tunecast": ask(job_of(row)), **others})
        found.append(done)
        error = done["error"].get("tunecast")
        shown = done["said"]["tunecast"].get("refused", "").splitlines()[0][:90] if error is None else f"{error:+.2%}"
        print(done["id"], done["stack"], done["kind"], done["about"], shown, flush=True)
    for line in promises(groups(found)):
        print(line)
    if not options.only:
        result = {
            "commit": commit(),
            "engine": options.engine,
            "peers": versions(options.peers) if options.peers else {},
            "groups": groups(found),
            "rows": found,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
