"""Whether brute force finds a better pick than the plan, over five spaces; `results/plan_brute_force.json`.

    python benchmarks/plan_brute_force.py [--only NAME] [--out FILE]

Every setting of every offer of a provider is predicted as `tunecast predict` does it, and its bill made from the raw
rows (offers.csv, providers.toml) by `to_pay` below, which shares nothing with the plan's. The space is written out here
once more, not taken from the plan: micro-batch x accumulation with the same global batch, ddp, fsdp, layers over cards,
recomputation, Liger, and what a quantized base allows. ZeRO is left out, as the plan does where others fit. A setting
counts if it fits at the high end of its range. The plan's cheapest may be 1 % dearer if it is faster, and its fastest 1
% slower if it is cheaper.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
import tomllib
from collections.abc import Iterator
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402

from tunecast.door.plan import plan as plan_of  # noqa: E402
from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job.mapping import job_from_dict  # noqa: E402
from tunecast.job.model import resolve_model  # noqa: E402
from tunecast.prediction.engines import predict  # noqa: E402
from tunecast.prediction.outside.needs import outside_of  # noqa: E402

RESULTS = HERE / "results" / "plan_brute_force.json"
OFFERS = HERE.parent / "src" / "tunecast" / "market"
DAY = "2026-11-15"
MONTH_H = 365.25 * 24 / 12
GIB = 2**30
Row = dict[str, Any]


class Space(NamedTuple):
    job: Row
    provider: str
    gpu: str = ""


LORA = {"rank": 16, "targets": "all-linear"}
SPACES = {
    "1B full, Lyceum's L40S": Space(
        {"model": "llama-3.2-1b", "method": "full", "seq_len": 2048, "micro_batch": 8, "data": {"samples": 2000}},
        "lyceum", "l40s",
    ),
    "8B LoRA, Seeweb": Space(
        {"model": "llama-3.1-8b", "method": "lora", "lora": LORA, "weights_dtype": "bfloat16", "seq_len": 2048,
         "micro_batch": 8, "data": {"samples": 2000}},
        "seeweb",
    ),
    "8B QLoRA, Verda": Space(
        {"model": "llama-3.1-8b", "method": "qlora", "lora": LORA, "weights_dtype": "bfloat16", "seq_len": 2048,
         "micro_batch": 4, "grad_accum": 2, "data": {"samples": 2000}},
        "verda",
    ),
    "13B LoRA, Lyceum": Space(
        {"model": "llama-2-13b", "method": "lora", "lora": LORA, "weights_dtype": "bfloat16", "seq_len": 2048,
         "micro_batch": 8, "data": {"samples": 1000}},
        "lyceum",
    ),
    "70B QLoRA, Nebius": Space(
        {"model": "llama-3.1-70b", "method": "qlora", "lora": LORA, "weights_dtype": "bfloat16", "seq_len": 2048,
         "micro_batch": 4, "grad_accum": 2, "data": {"samples": 500}},
        "nebius",
    ),
}  # fmt: skip


def raw_offers(space: Space) -> Iterator[Row]:
    """On demand, one machine, sold by the provider itself."""
    with (OFFERS / "catalog" / "offers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            wanted = (row["provider"], row["kind"], row["via"]) == (space.provider, "on-demand", "")
            if wanted and space.gpu in ("", row["gpu"]):
                yield row


def settings(space: Space, gpus: int) -> Iterator[Row]:
    job = space.job
    batch = job["micro_batch"] * job.get("grad_accum", 1)
    spreads = [("ddp", 1), *([("fsdp", 1), ("ddp", gpus)] if gpus > 1 else [])]
    kbit = (True, False) if job["method"] == "qlora" else (None,)
    for (data, layers), recomputes, kernels, prepares in product(spreads, (True, False), ([], ["liger"]), kbit):
        ranks = gpus // layers
        if batch % ranks:
            continue
        rows = batch // ranks
        for micro in (n for n in range(1, rows + 1) if rows % n == 0):
            for each_batch in (False, True) if data == "fsdp" and rows > micro else (False,):
                yield {
                    **job,
                    "micro_batch": micro,
                    "grad_accum": rows // micro,
                    "gradient_checkpointing": recomputes,
                    "kernels": kernels,
                    "parallel": {"data": data, "layers": layers, "sync_each_batch": each_batch},
                    **({} if prepares is None else {"quantization": {"prepare_kbit": prepares}}),
                }


def to_pay(row: Row, phases_s: dict[str, float], job: Any, checkpoints: int) -> float:
    """By hand: machine time rounded as the provider bills, storage while it runs, egress of the result."""
    terms = tomllib.loads((OFFERS / "providers.toml").read_text("utf-8"))[row["provider"]]
    free = terms.get("bills_start") is False
    used_s = sum(spent for name, spent in phases_s.items() if not (free and name == "provisioning"))
    step_s = terms.get("billing_step_s", 3600)
    billed_s = max(ceil(round(used_s / step_s, 9)) * step_s, terms.get("billing_minimum_s", 0))
    disk = outside_of(job, resolve_model(job.model)).disk
    stored_gb = (checkpoints * disk.checkpoint_bytes + disk.weights_bytes) / 1e9
    usd = float(row["usd_per_hour"]) * billed_s / 3600
    usd += stored_gb * terms.get("storage_usd_per_gb_month", 0.023) * sum(phases_s.values()) / 3600 / MONTH_H
    taken_gb = max(0.0, disk.weights_bytes / 1e9 - terms.get("egress_free_gb", 0))
    return usd + taken_gb * terms.get("egress_usd_per_gb", 0.12)


def brute(space: Space) -> tuple[list[Row], int, int]:
    """Every setting that fits for sure, with its cost and time; how many were predicted and refused."""
    terms = tomllib.loads((OFFERS / "providers.toml").read_text("utf-8"))[space.provider]
    low, high = terms.get("provisioning_s", (120.0, 300.0))
    found, tried, refused = [], 0, 0
    machines: dict[tuple[str, int], list[Row]] = {}
    for row in raw_offers(space):
        machines.setdefault((row["gpu"], int(row["gpus"])), []).append(row)
    for (gpu, gpus), rows in machines.items():
        for written, vcpus in product(settings(space, gpus), {row["vcpus"] for row in rows}):
            hardware = {"gpu": gpu, "gpus": gpus, "provisioning_s": (low + high) / 2}
            data = {**written["data"], "num_proc": max(1, int(vcpus or 2) // 2)}
            tried += 1
            try:
                job = job_from_dict({**written, "hardware": hardware, "data": data})
                said = predict(job, timed=True)
                needs = outside_of(job, resolve_model(job.model)).machine_ram_bytes
            except TunecastError:
                refused += 1
                continue
            held = said.memory.range_bytes.device[1]
            if not said.fits or held > said.capacity_bytes + (said.memory.device_bytes - said.memory.reserved_bytes):
                continue
            for row in (row for row in rows if row["vcpus"] == vcpus):
                if row["ram_gib"] and needs is not None and needs > float(row["ram_gib"]) * GIB:
                    continue
                usd = to_pay(row, said.time.phases_s, job, said.time.checkpoints)
                kept = {name: written[name] for name in ("micro_batch", "grad_accum", "parallel", "kernels")}
                found.append({"hardware": f"{gpus} x {gpu}", "usd": usd, "seconds": said.time.total_s, **kept})
    return found, tried, refused


def compared(name: str, space: Space) -> Row:
    began_s = time.perf_counter()
    found, tried, refused = brute(space)
    only = {"gpu": space.gpu} if space.gpu else {}
    plan = plan_of(space.job, provider=[space.provider], as_of=DAY, no_spot=True, **only)
    assert plan.failure is None, plan.failure
    cheap, fast = plan.picks["cheapest"], plan.picks["fastest"]
    least = min(found, key=lambda each: (each["usd"], each["seconds"]))
    soonest = min(found, key=lambda each: (each["seconds"], each["usd"]))
    return {
        "space": name,
        "predicted": tried,
        "refused": refused,
        "fitting": len(found),
        "cheapest": least,
        "plan_cheapest": _told(cheap),
        "fastest": soonest,
        "plan_fastest": _told(fast),
        "cheapest_agrees": cheap.total_usd <= least["usd"] * 1.0101,
        "fastest_agrees": fast.total_s <= soonest["seconds"] * 1.0101,
        "seconds": round(time.perf_counter() - began_s, 1),
    }


def _told(choice: Any) -> Row:
    return {"hardware": choice.hardware, "usd": choice.total_usd, "seconds": choice.total_s, "set": choice.settings}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", choices=tuple(SPACES), action="append")
    arguments.add_argument("--out", type=Path, default=RESULTS)
    given = arguments.parse_args()
    rows = []
    for name, space in SPACES.items():
        if given.only and name not in given.only:
            continue
        rows.append(compared(name, space))
        print(json.dumps(rows[-1]), flush=True)
    given.out.write_text(json.dumps({"commit": commit(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
