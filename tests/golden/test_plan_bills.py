"""Bills recomputed from the raw rows: offers.csv and providers.toml as they lie on disk, and the seconds of each phase.

Nothing of the biller is used here; the rules are written out once more."""

from __future__ import annotations

import csv
import tomllib
from math import ceil
from pathlib import Path
from typing import cast

import pytest

from tunecast.cli.filters import options_from
from tunecast.cli.plan import parser
from tunecast.door.plan import Planner, PlanOptions
from tunecast.door.read import read
from tunecast.job.flags import overrides_from
from tunecast.job.model import resolve_model
from tunecast.planning.choice import Choice
from tunecast.prediction.outside.needs import outside_of

OFFERS = Path(__file__).parents[2] / "src" / "tunecast" / "market"
MONTH_H = 365.25 * 24 / 12
LORA = "llama-3.1-8b --method lora --targets all-linear --weights-dtype bfloat16 --seq-len 2048 --samples 5000"
BILLS = (
    f"{LORA} --provider lambda --gpus 1",
    f"{LORA} --provider runpod --gpu l40s --vat 19",
    f"{LORA} --provider verda",
    f"{LORA} --provider nebius --gpus 1",
    f"{LORA} --provider seeweb --runs 3",
    f"{LORA} --provider gcp --gpus 1 --storage 500GB",
    f"{LORA} --provider aws --gpus 8 --egress 300GB",
    "llama-3.2-1b --method full --samples 5000 --provider lyceum --gpu l40s",
    "llama-3.2-1b --method full --samples 5000 --provider digitalocean",
    f"{LORA} --provider runpod --kind reserved",
)


def raw_row(choice: Choice) -> dict[str, str]:
    """The one row of the file with this machine and price."""
    offer = choice.fleet.offer
    with (OFFERS / "catalog" / "offers.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["provider"], row["kind"], row["gpu"]) == (offer.provider, offer.kind, offer.gpu)
            and int(row["gpus"]) == offer.gpus
            and abs(float(row["usd_per_hour"]) - offer.usd_per_hour) < 1e-9
        ]
    assert rows
    return rows[0]


def to_pay(choice: Choice, line: str) -> float:
    row = raw_row(choice)
    terms = tomllib.loads((OFFERS / "providers.toml").read_text("utf-8"))[row["provider"]]
    hourly, seconds = float(row["usd_per_hour"]) * choice.fleet.nodes, dict(choice.phases_s)
    is_free = terms.get("bills_start") is False
    used_s = sum(spent for name, spent in seconds.items() if not (is_free and name == "provisioning"))
    step_s = terms.get("billing_step_s", 3600)
    billed_s = max(ceil(round(used_s / step_s, 9)) * step_s, terms.get("billing_minimum_s", 0))
    usd = hourly * billed_s / 3600
    if row["term_hours"]:
        usd = hourly * float(row["term_hours"])
    words = line.split()
    runs = int(words[words.index("--runs") + 1]) if "--runs" in words else 1
    disk = outside_of(choice.job, resolve_model(choice.job.model)).disk
    weights_gb, saved = disk.weights_bytes / 1e9, choice.prediction.time.checkpoints
    stored_gb = runs * (saved * disk.checkpoint_bytes / 1e9 + weights_gb)
    hours = sum(seconds.values()) / 3600
    if "--storage" in words:
        stored_gb, hours = 500, MONTH_H
    usd += stored_gb * terms.get("storage_usd_per_gb_month", 0.023) * hours / MONTH_H
    out_gb = 300 if "--egress" in words else runs * weights_gb
    usd += max(0.0, out_gb - terms.get("egress_free_gb", 0)) * terms.get("egress_usd_per_gb", 0.12)
    return usd * (1.19 if "--vat" in words else 1)


@pytest.mark.parametrize("line", BILLS, ids=[str(n) for n in range(len(BILLS))])
def test_a_bill_is_the_raw_rows_to_the_cent(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    arguments = parser().read([*line.split(), "--as-of", "2026-11-15", "--quiet"])
    options = cast(PlanOptions, options_from(arguments, PlanOptions.__annotations__))
    plan = Planner(read(arguments.source, overrides_from(arguments)), options).plan()
    assert plan.failure is None
    for choice in filter(None, plan.picks.values()):
        assert choice.total_usd == pytest.approx(to_pay(choice, line), abs=0.005)
