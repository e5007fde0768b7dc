"""Does what a plan says fits also fit under the tracer? A seeded sample of jobs; writes `results/plan_traced.json`.

    python benchmarks/plan_traced.py --python ENV/bin/python [--anew]

Each job is drawn with a seed, planned over the bundled on-demand offers of some cards, one card a machine (a trace
follows one), and its cheapest pick is traced on that card: the plan predicts with the closed form, the trace runs the
training code of ENV (transformers, peft, bitsandbytes, liger-kernel) and records what it allocates. A draw that no
card of its own serves has no pick, and the next is drawn in its place. Rows that are there stay unless `--anew`; prices
move picks, so a row keeps the job as drawn and the settings picked; `commit` is that of the last row.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job import job_from_dict  # noqa: E402
from tunecast.job.job import Job  # noqa: E402
from tunecast.market.offer import ON_DEMAND  # noqa: E402
from tunecast.market.selection import Selection  # noqa: E402
from tunecast.market.store import bundled  # noqa: E402
from tunecast.planning.choice import Choice  # noqa: E402
from tunecast.planning.plan import Question, plan_of  # noqa: E402
from tunecast.planning.space import Freedom  # noqa: E402
from tunecast.prediction.engines import predict  # noqa: E402
from tunecast.prediction.prediction import Prediction  # noqa: E402

RESULTS = HERE / "results" / "plan_traced.json"
Row = dict[str, Any]
SEED, SAMPLE = 20261115, 30
MODELS = (
    *("smollm2-135m", "smollm2-360m", "smollm2-1.7b", "smollm3-3b", "tinyllama-1.1b", "llama-3.2-1b", "llama-3.2-3b"),
    *("llama-2-7b", "llama-3.1-8b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-0.6b"),
    *("qwen3-1.7b", "qwen3-4b", "gemma-2b", "gemma-2-2b", "gemma-3-270m", "gemma-3-1b", "phi-1.5", "phi-2"),
    *("phi-3-mini", "phi-4-mini", "mistral-7b", "ministral-8b", "granite-3.1-2b", "olmo-2-1b", "olmo-2-7b"),
    *("falcon3-1b", "falcon3-3b", "stablelm-2-1.6b", "starcoder2-3b"),
)
CARDS = (
    *("a10", "a10g", "l4", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-a6000", "l40s", "a100-pcie-40gb", "a100-sxm-40gb"),
    *("a100-sxm-80gb", "h100-sxm-80gb"),
)
CARDS_EACH = 4
"""Few, so that a job meets cards it fills and not always the one cheapest of all."""
METHODS: dict[str, tuple[Row, ...]] = {
    "full": (
        {"weights_dtype": "float32", "autocast": "bfloat16"},
        {"weights_dtype": "bfloat16", "autocast": None},
    ),
    "lora": ({"weights_dtype": "bfloat16"},),
    "qlora": ({"weights_dtype": "bfloat16"},),
}


def draws() -> Iterator[tuple[Row, tuple[str, ...]]]:
    """Jobs as a user writes them, each with the cards it may run on: the same ones every time."""
    chance = random.Random(SEED)
    while True:
        method = chance.choice(tuple(METHODS))
        job: Row = {
            "model": chance.choice(MODELS),
            "method": method,
            "seq_len": chance.choice((512, 1024, 2048, 4096)),
            "micro_batch": 1,
            "grad_accum": chance.choice((4, 8, 16, 32)),
            "data": {"tokens": 1_000_000},
            **chance.choice(METHODS[method]),
        }
        if method != "full":
            job["lora"] = {"rank": chance.choice((8, 16, 64)), "targets": "all-linear"}
        yield job, tuple(sorted(chance.sample(CARDS, CARDS_EACH)))


def cheapest(written: Row, cards: tuple[str, ...], today: date) -> Choice | None:
    offers = [each for each in bundled() if each.kind == ON_DEMAND and each.gpus == 1 and each.gpu in cards]
    freedom = Freedom(written=frozenset({"method", "weights_dtype", "seq_len"}), nodes_up_to=1)
    plan = plan_of(job_from_dict(written), Selection(tuple(offers)), Question(today, freedom))
    return plan.picks["cheapest"]


def told(done: Prediction) -> Row:
    memory = done.memory
    return {
        "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "device_bytes": memory.device_bytes,
        "capacity_bytes": done.on_card.capacity_bytes,
        "fits": done.on_card.fits,
    }


def traced(job: Job, python: str) -> Row:
    """Raises nothing: what the tracer refuses is a row that says so."""
    start = time.perf_counter()
    try:
        found = told(predict(job, engine="traced", python=python))
    except TunecastError as error:
        return {"refused": error.message.splitlines()[0]}
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def row_of(number: int, written: Row, cards: tuple[str, ...], pick: Choice, python: str) -> Row:
    plan = {
        "hardware": pick.hardware,
        "device_bytes": pick.device_bytes,
        "device_range_bytes": list(pick.device_range_bytes),
        "capacity_bytes": pick.capacity_bytes,
        "fits_surely": pick.fits_surely,
        "fits": pick.prediction is not None and pick.prediction.fits,
        "settings": pick.settings,
    }
    found = traced(pick.job, python)
    row: Row = {"draw": number, "job": written, "cards": list(cards), "plan": plan, "traced": found}
    if "refused" not in found:
        row["agree"] = found["fits"] == plan["fits"]
        row["device_error"] = round(plan["device_bytes"] / found["device_bytes"] - 1, 6)
    return row


def sample(known: list[Row], served: dict[int, bool], python: str) -> Iterator[list[Row]]:
    """Rows so far, after each that is new."""
    rows = {row["draw"]: row for row in known}
    today = date.today()
    for number, (written, cards) in enumerate(draws()):
        if sum(draw < number for draw in rows) == SAMPLE:
            return
        if number in rows or served.get(number) is False:
            continue
        pick = cheapest(written, cards, today)
        served[number] = pick is not None
        if pick is not None:
            rows[number] = row_of(number, written, cards, pick, python)
            yield [rows[draw] for draw in sorted(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter with torch and transformers")
    parser.add_argument("--anew", action="store_true", help="forget the rows that are there")
    asked = parser.parse_args()
    old: Row = json.loads(RESULTS.read_text()) if RESULTS.exists() and not asked.anew else {}
    served = {number: False for number in old.get("not_served", ())}
    for rows in sample(old.get("rows", []), served, asked.python):
        no = sorted(number for number, is_served in served.items() if not is_served)
        result = {"seed": SEED, "sample": SAMPLE, "commit": commit(), "not_served": no, "rows": rows}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        last = max(rows, key=lambda row: row["draw"])
        job, plan, trace = last["job"], last["plan"], last["traced"]
        what = f"{job['model']} {job['method']} {job['seq_len']} on {plan['hardware']}"
        print(len(rows), what, plan["device_bytes"], json.dumps(trace), last.get("device_error"), flush=True)


if __name__ == "__main__":
    main()
