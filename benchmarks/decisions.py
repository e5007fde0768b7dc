"""The decision tables of the docs: size of model x method, what `tunecast plan` says to rent for each, and what the
guides' own recommendations would cost there.

    python benchmarks/decisions.py [--only SIZE...] [--table NAME...]

writes benchmarks/results/decisions.json and docs/decisions.md. Nothing here is measured; the accuracy pages say how far
predictions of each kind are off. Prices are the bundled ones, as of one day, so that the tables are the same on every
machine and on every day.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from decisions_guides import Recommendation, recommended  # noqa: E402
from decisions_page import page  # noqa: E402

from tunecast.errors import TunecastError  # noqa: E402
from tunecast.hardware.catalog import gpu as gpu_named  # noqa: E402
from tunecast.job import job_from_dict  # noqa: E402
from tunecast.job.model import resolve_model  # noqa: E402
from tunecast.job.registry import bundled_config  # noqa: E402
from tunecast.market.filters import Filters  # noqa: E402
from tunecast.market.offer import SPOT, Offer  # noqa: E402
from tunecast.market.selection import MARKETPLACE, Rules, Selection, select  # noqa: E402
from tunecast.market.store import bundled  # noqa: E402
from tunecast.planning.choice import DOLLARS, Choice, Plan  # noqa: E402
from tunecast.planning.plan import VALIDATED, Question, plan_of  # noqa: E402
from tunecast.planning.space import Freedom  # noqa: E402
from tunecast.prediction.outside.needs import tensors_on_paper  # noqa: E402
from tunecast.report.plan.words import amount, amounts, changes, offer_name, room  # noqa: E402
from tunecast.report.run.time import duration, span  # noqa: E402

RESULTS, PAGE = HERE / "results" / "decisions.json", HERE.parent / "docs" / "decisions.md"
Row = dict[str, Any]
AS_OF = date(2026, 11, 15)

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
SIXTEEN_BITS: Row = {"weights_dtype": "bfloat16", "autocast": "bfloat16", "lora": LORA}
METHODS: Mapping[str, Row] = {
    "full": {"method": "full", "weights_dtype": "float32", "autocast": "bfloat16"},
    "lora": {"method": "lora", **SIXTEEN_BITS},
    "qlora": {"method": "qlora", **SIXTEEN_BITS, "quantization": {"double_quant": True, "prepare_kbit": False}},
}
FIXED: Row = {"attention": "sdpa"}
PICKS = ("cheapest", "balanced", "fastest")


class Table(NamedTuple):
    """Which offers a table's picks are from."""

    rules: Rules
    filters: Filters = Filters()
    accepts: Callable[[Offer], bool] = lambda offer: True


def is_data_centre(offer: Offer) -> bool:
    """NVIDIA's cards for servers: GeForce and workstation cards are named RTX."""
    return gpu_named(offer.gpu).vendor == "NVIDIA" and not offer.gpu.startswith("rtx")


TABLES: Mapping[str, Table] = {
    "anything": Table(Rules(frozenset({SPOT, MARKETPLACE}))),
    "contract": Table(Rules(), accepts=is_data_centre),
    "eu": Table(Rules(), Filters(eu=True, no_cloud_act=True)),
}
"""By the names of `decisions_page.TABLES`."""


def job_of(model: str, method: str, folder: Path) -> Row:
    if model in NOT_BUNDLED:
        place = folder / model
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps({**bundled_config("falcon-40b"), **NOT_BUNDLED[model]}))
        model = str(place)
    data = {"samples": SAMPLES, "epochs": EPOCHS}
    batch = {"seq_len": SEQ_LEN, "micro_batch": 1, "grad_accum": BATCH}
    return {"model": model, **batch, "data": data, **FIXED, **METHODS[method]}


def parameters(written: Row) -> int:
    """As transformers builds the model, without adapters."""
    job = job_from_dict({"model": written["model"]})
    return sum(tensor.elements for tensor in tensors_on_paper(job, resolve_model(job.model).raw))


def offers_of(table: Table) -> Selection:
    """What may be picked, and nothing beside it."""
    found = with_any_card(table)
    return replace(found, offers=tuple(filter(table.accepts, found.offers)))


def with_any_card(table: Table) -> Selection:
    """What the table's other conditions leave: a guide may name a card that the table does not pick from."""
    return replace(select(bundled(), table.filters, table.rules, AS_OF), beside={}, unproven={}, doubts={})


def decided(size: str, method: str, table: Table, folder: Path) -> Row:
    model = SIZES[size]
    written = job_of(model, method, folder)
    offers = offers_of(table)
    row: Row = {"size": size, "model": model, "method": method, "parameters": parameters(written)}
    try:
        plan = _plan(written, method, offers)
    except TunecastError as error:
        return {**row, "refused": error.message.splitlines()[0], "guides": []}
    best = plan.picks["cheapest"]
    return {
        **row,
        "picks": {**{name: _pick(plan, name) for name in PICKS}, "cheapest measured": _measured(plan)},
        "searched": plan.searched._asdict(),
        "refused": None if plan.choices else _why(plan),
        "guides": [_guide(each, written, method, with_any_card(table), best) for each in recommended(size, method)],
    }


def _plan(written: Row, method: str, offers: Selection, nodes: int | None = None) -> Plan:
    fixed = frozenset({"seq_len", *FIXED, *METHODS[method]})
    return plan_of(job_from_dict(written), offers, Question(AS_OF, Freedom(written=fixed, nodes_up_to=nodes)))


def _guide(each: Recommendation, written: Row, method: str, offers: Selection, best: Choice | None) -> Row:
    """The recommended hardware, with the settings and the offer that are cheapest on it."""
    row: Row = {"guide": each.guide, "hardware": each.hardware, "told": each.told}
    same = tuple(offer for offer in offers.offers if (offer.gpu, offer.gpus) == (each.gpu, each.gpus))
    if not same:
        return {**row, "verdict": "no such offer"}
    try:
        plan = _plan(written, method, replace(offers, offers=same), each.nodes)
    except TunecastError as error:
        return {**row, "verdict": "refused", "why": error.message.splitlines()[0]}
    fitting = [one for one in plan.choices if one.fleet.nodes == each.nodes]
    if not fitting:
        return {**row, "verdict": "does not fit", "why": _why(plan)}
    found = min(fitting, key=lambda one: (not one.fits_surely, one.total_usd))
    dearer = None if best is None else found.total_usd / best.total_usd - 1
    return {
        **row,
        "verdict": "fits" if found.fits_surely else "may not fit",
        "dearer": dearer,
        "choice": _choice(found),
    }


def _pick(plan: Plan, name: str) -> Row | None:
    one = plan.picks[name]
    return None if one is None else _choice(one)


def _measured(plan: Plan) -> Row | None:
    """The cheapest whose card and stack were measured, where those of the cheapest were not."""
    return next((_choice(each.choice) for each in plan.beside if each.kind == VALIDATED), None)


def _choice(one: Choice) -> Row:
    held = room(one)
    return {
        "hardware": one.hardware,
        "offer": offer_name(one.fleet.offer),
        "dated": one.fleet.offer.dated.isoformat(),
        "settings": changes(one),
        "memory": held.used,
        "surely": held.surely,
        "validated": one.validated,
        "evidence": one.evidence,
        "time": duration(one.total_s),
        "time_range": span(*one.total_range_s),
        "cost": amount(one.total_usd, DOLLARS),
        "cost_range": amounts(*one.usd_range, DOLLARS),
        "total_s": one.total_s,
        "total_usd": one.total_usd,
    }


def _why(plan: Plan) -> str:
    """Of the hardware with the most memory, why not."""
    if not plan.refused:
        return "no offer"
    most = max(plan.refused, key=lambda one: _memory_bytes(one.hardware))
    return f"{most.hardware}: {most.reason}"


def _memory_bytes(hardware: str) -> int:
    """Of all cards of `8 x b200-sxm-180gb`, `2 machines of 8 x b200-sxm-180gb`."""
    found = re.search(r"(?:(\d+) machines of )?(\d+) x (\S+)", hardware)
    return 0 if found is None else int(found[1] or 1) * int(found[2]) * gpu_named(found[3]).memory_bytes


def settings() -> Row:
    """What the page says of the job."""
    return {
        "as_of": AS_OF.isoformat(), "samples": SAMPLES, "epochs": EPOCHS, "seq_len": SEQ_LEN, "batch": BATCH,
        "sizes": dict(SIZES), "offers": {name: len(offers_of(table).offers) for name, table in TABLES.items()},
    }  # fmt: skip


def main() -> None:
    """Rows that are not asked for again stay as they were, so that a size can be done at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(SIZES), metavar="SIZE", default=list(SIZES))
    parser.add_argument("--table", nargs="+", choices=tuple(TABLES), metavar="NAME", default=list(TABLES))
    asked = parser.parse_args()
    known = json.loads(RESULTS.read_text("utf-8")).get("tables", {}) if RESULTS.exists() else {}
    rows = {(name, row["size"], row["method"]): row for name, of in known.items() for row in of}
    with tempfile.TemporaryDirectory() as folder:
        for size, method, name in product(asked.only, METHODS, asked.table):
            rows[name, size, method] = decided(size, method, TABLES[name], Path(folder))
            print(name, json.dumps(rows[name, size, method]), flush=True)
            keys = list(product(SIZES, METHODS))
            tables = {table: [rows[table, *key] for key in keys if (table, *key) in rows] for table in TABLES}
            results = {**settings(), "tables": tables}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text("utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
