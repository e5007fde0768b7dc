"""The decision table of the docs: size of model x method, and what `tunecast plan` says to rent for each.

    python benchmarks/decisions.py [--only SIZE...]    writes benchmarks/results/decisions.json and docs/decisions.md

Nothing here is measured; the accuracy pages say how far predictions of each kind are off. Prices are the bundled ones,
so that the table is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from figures import table  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.job import job_from_dict  # noqa: E402
from tunecast.job.model import resolve_model  # noqa: E402
from tunecast.job.registry import bundled_config  # noqa: E402
from tunecast.offers.offer import ON_DEMAND  # noqa: E402
from tunecast.offers.store import bundled  # noqa: E402
from tunecast.plan.choice import Choice, Money, Plan  # noqa: E402
from tunecast.plan.plan import planned  # noqa: E402
from tunecast.plan.space import Freedom  # noqa: E402
from tunecast.predict.outside import tensors_on_paper  # noqa: E402
from tunecast.report.plan_md import plain  # noqa: E402
from tunecast.report.plan_words import amount, amounts, changes, offer_told, room  # noqa: E402
from tunecast.report.time import duration, span  # noqa: E402
from tunecast.units import billions  # noqa: E402

RESULTS, PAGE = HERE / "results" / "decisions.json", HERE.parent / "docs" / "decisions.md"
Row = dict[str, Any]

SIZES: Mapping[str, str] = {
    "1B": "llama-3.2-1b", "3B": "llama-3.2-3b", "7B": "llama-2-7b", "13B": "llama-2-13b", "34B": "codellama-34b",
    "70B": "llama-3.1-70b", "180B": "falcon-180b", "405B": "llama-3.1-405b",
}  # fmt: skip
NOT_BUNDLED: Mapping[str, Row] = {
    "falcon-180b": {"num_hidden_layers": 80, "num_attention_heads": 232, "num_kv_heads": 8, "hidden_size": 14848}
}
"""Falcon 40B's configuration but for these: Lightning-AI/litgpt, litgpt/config.py, "falcon-180B" (after its config.json
on the Hub)."""
SAMPLES, EPOCHS, SEQ_LEN, BATCH = 5_120, 3, 2048, 64
LORA: Row = {"rank": 16, "dropout": 0.0, "targets": "all-linear"}
METHODS: Mapping[str, Row] = {
    "full": {"method": "full", "weights_dtype": "float32", "autocast": "bfloat16"},
    "lora": {"method": "lora", "weights_dtype": "bfloat16", "autocast": "bfloat16", "lora": LORA},
    "qlora": {"method": "qlora", "weights_dtype": "bfloat16", "autocast": "bfloat16", "lora": LORA},
}
TOLD: Mapping[str, str] = {
    "full": "float32 weights under bfloat16 autocast and AdamW, as the Trainer does: 16 bytes a parameter before any "
    "activation",
    "lora": "rank 16 on all linear layers, base weights in bfloat16",
    "qlora": "rank 16 on all linear layers, base weights in NF4",
}
FIXED: Row = {"attention": "sdpa"}
ONE_MACHINE = ("1B", "3B", "7B", "13B", "34B")
"""Sizes that need no second one."""
PICKS = ("cheapest", "balanced", "fastest")
MONEY = Money()


def job_of(model: str, method: str, folder: Path) -> Row:
    if model in NOT_BUNDLED:
        place = folder / model
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps({**bundled_config("falcon-40b"), **NOT_BUNDLED[model]}))
        model = str(place)
    data = {"samples": SAMPLES, "epochs": EPOCHS}
    return {
        "model": model,
        "seq_len": SEQ_LEN,
        "micro_batch": 1,
        "grad_accum": BATCH,
        "data": data,
        **FIXED,
        **METHODS[method],
    }


def parameters(written: Row) -> int:
    """As transformers builds the model, without adapters."""
    job = job_from_dict({"model": written["model"]})
    return sum(tensor.elements for tensor in tensors_on_paper(job, resolve_model(job.model).raw).parameters)


def asked(size: str, method: str, today: date, folder: Path) -> Row:
    model = SIZES[size]
    written = job_of(model, method, folder)
    job = job_from_dict(written)
    offers = [offer for offer in bundled() if offer.kind == ON_DEMAND]
    fixed = frozenset({"seq_len", *FIXED, *METHODS[method]})
    freedom = Freedom(written=fixed, nodes_up_to=1 if size in ONE_MACHINE else None)
    row: Row = {"size": size, "model": model, "method": method}
    row["parameters"] = parameters(written)
    try:
        plan = planned(job, offers, today=today, freedom=freedom)
    except TunecastError as error:
        return {**row, "refused": error.message.splitlines()[0]}
    return {
        **row,
        "picks": {name: _pick(plan, name) for name in PICKS},
        "searched": plan.searched._asdict(),
        "refused": None if plan.choices else _why(plan),
    }


def _pick(plan: Plan, name: str) -> Row | None:
    one = plan.picks[name]
    return None if one is None else _choice(one)


def _choice(one: Choice) -> Row:
    held = room(one)
    return {
        "hardware": one.hardware,
        "offer": offer_told(one.machine.offer),
        "settings": changes(one),
        "memory": held.used,
        "surely": held.surely,
        "time": duration(one.total_s),
        "time_range": span(*one.total_range_s),
        "cost": amount(one.total_usd, MONEY),
        "cost_range": amounts(*one.usd_range, MONEY),
        "total_s": one.total_s,
        "total_usd": one.total_usd,
    }


def _why(plan: Plan) -> str:
    """Of the hardware with the most memory, why not."""
    return plan.refused[-1].reason if plan.refused else "no offer"


def page(results: Mapping[str, Any]) -> str:
    rows: list[Row] = results["rows"]
    parameters = {row["size"]: billions(row["parameters"]) for row in rows}
    sizes = ", ".join(f"{size}: {model} ({parameters[size]})" for size, model in SIZES.items() if size in parameters)
    parts = [
        "# Decisions: what to rent for which size",
        "",
        "Written by `benchmarks/decisions.py` with `tunecast plan`. Nothing on this page was measured;",
        "[how far predictions are off](accuracy_time.md) is on a page of its own. A price is not availability: prices",
        "are the [bundled ones](offers.md), without VAT, and some are months old.",
        "",
        f"The job: {SAMPLES:,} rows of {SEQ_LEN:,} tokens, {EPOCHS} times over, with a global batch of {BATCH}",
        f"rows ({BATCH * SEQ_LEN:,} tokens a step) and PyTorch's own attention. tunecast chose the cards, the split of",
        "the batch, the sharding, whether to recompute, and Liger's kernels where there are any; the rest is fixed:",
        "",
        *(f"- **{method}**: {told};" for method, told in TOLD.items()),
        f"- models: {sizes}.",
        "  Falcon 180B is not bundled: its configuration is Falcon 40B's with the sizes litgpt lists.",
        "",
        f"Rented on demand (spot is cheaper, and may be taken away). One machine up to {ONE_MACHINE[-1]}, beyond it as",
        "many as make 64 cards, where a source says that they join. Memory is of the fullest card; ranges hold in four",
        "of five cases.",
        "",
    ]
    parts += ["## Cheapest", "", *_table(rows, "cheapest")]
    parts += ["## Balanced", "", "The knee between cost and time.", "", *_table(rows, "balanced")]
    parts += ["## Fastest", "", *_table(rows, "fastest")]
    total = sum(row["searched"]["configurations"] for row in rows if row.get("searched"))
    predicted = sum(row["searched"]["predicted"] for row in rows if row.get("searched"))
    parts += [
        f"{len(rows)} plans over {total:,} configurations, of which {predicted:,} were predicted and the others ruled",
        f"out by a proven bound. Planned for {results['today']}.",
        "",
    ]
    return "\n".join(parts)


def _table(rows: list[Row], pick: str) -> list[str]:
    out = []
    for row in rows:
        one = (row.get("picks") or {}).get(pick)
        if one is None:
            out.append([row["size"], row["method"], plain(f"nothing: {row['refused']}"), "", "", "", ""])
            continue
        memory = one["memory"] + ("" if one["surely"] else ", may not fit")
        settings = f"`{'; '.join(one['settings'])}`" if one["settings"] else ""
        rent = plain(f"{one['hardware']}, {one['offer']}")
        time, cost = f"{one['time']} ({one['time_range']})", f"{one['cost']} ({one['cost_range']})"
        out.append([row["size"], row["method"], rent, settings, memory, time, cost])
    return list(table(["model", "method", "rent", "set", "memory of a card", "time", "cost"], out))


def main() -> None:
    """Rows that are not asked for again stay as they were, so that a size can be done at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(SIZES), metavar="SIZE")
    only = parser.parse_args().only
    today = date.today()
    known = json.loads(RESULTS.read_text())["rows"] if only and RESULTS.exists() else []
    rows = {(row["size"], row["method"]): row for row in known}
    with tempfile.TemporaryDirectory() as folder:
        for size, method in product(only or SIZES, METHODS):
            rows[size, method] = asked(size, method, today, Path(folder))
            print(json.dumps(rows[size, method]), flush=True)
            ordered = [rows[key] for key in product(SIZES, METHODS) if key in rows]
            results = {"today": today.isoformat(), "rows": ordered}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
