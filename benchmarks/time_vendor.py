"""Predicted against vendors' published time of a step: data/vendor_runs.jsonl; writes `results/time_vendor.json`.

    python benchmarks/time_vendor.py --peers ENV/bin/python

MLPerf's llama2_70b_lora on 8 cards also says which card is faster: the order is compared too (`order`). And all of them
ran: what is said not to fit is said wrongly (`fit`).
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from time_public import run  # noqa: E402
from timing import Asked, rows_of  # noqa: E402

from tunecast.job import Job  # noqa: E402
from tunecast.prediction.engines import analytic  # noqa: E402

Row = dict[str, Any]
ORDERED = ("h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "mi300x")


def order(found: list[Row]) -> Row:
    """By card, the median step of MLPerf's LoRA on 8 cards in float8, measured and predicted, and whether both put the
    cards in the same order. A card that is refused leaves the order unknown."""
    cards: Row = {}
    for name in ORDERED:
        rows = [row for row in found if row["gpu"] == name and is_lora_on_eight(row)]
        said = [row["said"]["tunecast"]["step_s"] for row in rows if "step_s" in row["said"]["tunecast"]]
        if rows:
            cards[name] = {
                "rows": len(rows),
                "measured_s": statistics.median(row["measured_s"] for row in rows),
                "predicted_s": statistics.median(said) if said else None,
            }
    predicted = [cards[name]["predicted_s"] for name in cards]
    if None in predicted:
        return {"cards": cards, "agrees": None}
    by_measured = sorted(cards, key=lambda name: cards[name]["measured_s"])
    by_predicted = sorted(cards, key=lambda name: cards[name]["predicted_s"])
    return {"cards": cards, "agrees": by_measured == by_predicted}


def is_lora_on_eight(row: Row) -> bool:
    """`about` of such a row: llama-2-70b lora ... float8 ... 8 CARD."""
    words = row["about"].split()
    return row["stack"].startswith("MLPerf, ") and words[:2] == ["llama-2-70b", "lora"] and "8" in words[2:] and (
        "float8" in words
    )  # fmt: skip


def verdict(job: Job) -> Row:
    """Of memory alone."""
    held = analytic(job).on_card
    return {"fits": held.fits, "surely": held.room.surely}


def fit(rows: list[Row]) -> Row:
    """Of runs that ran and that are answered: how many are said not to fit, or that they may not."""
    ask = Asked(verdict)
    told = {row["id"]: ask(row) for row in rows}
    answered = {name: said for name, said in told.items() if "fits" in said}
    wrong = [name for name, said in answered.items() if not said["fits"]]
    return {
        "answered": len(answered),
        "does_not_fit": len(wrong),
        "may_not_fit": sum(said["fits"] and not said["surely"] for said in answered.values()),
        "wrong": wrong,
    }


def main() -> None:
    rows = rows_of("vendor_runs.jsonl")
    by_id = {row["id"]: row for row in rows}

    def more(found: list[Row]) -> Row:
        return {"order": order(found), "fit": fit([by_id[row["id"]] for row in found])}

    run("time_vendor.json", rows, more)


if __name__ == "__main__":
    main()
