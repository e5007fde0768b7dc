"""Matrix products against measured ones, a card fitted and the other left out; writes `results/price_products.json`.

    python benchmarks/price_products.py DATA.csv

DATA is a published table of float16 products of an A100 and a GH200, forward (one product) and backward (two): columns
gpu, M, N, K, f and b in microseconds. One number is estimated on a card, the share of its dense rate that a large
product reaches alone (`share`); tiles, their efficiencies and the pipeline are those of `prediction/price/products.py`,
and what other pipelines would give is told beside.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from memory import commit  # noqa: E402

from tunecast.hardware.catalog import gpu  # noqa: E402
from tunecast.prediction.price import products  # noqa: E402
from tunecast.prediction.price.rates import Rates  # noqa: E402

CARDS = {"A100": "a100-sxm-80gb", "GH200": "gh200-96gb"}
PIPELINES = (64, 128, 192, 256)
EVERY = 5
"""Of the products, every so-manieth: thousands are enough for a median."""


class Product(NamedTuple):
    m: int
    n: int
    k: int
    forward_s: float
    backward_s: float


def measured(path: Path) -> dict[str, list[Product]]:
    found: dict[str, list[Product]] = {name: [] for name in CARDS}
    with path.open() as file:
        for number, row in enumerate(csv.DictReader(file)):
            if number % EVERY == 0:
                sizes = (int(row[name]) for name in "MNK")
                found[row["gpu"]].append(Product(*sizes, float(row["f"]) * 1e-6, float(row["b"]) * 1e-6))
    return found


def rates(card: str, share: float) -> Rates:
    known = gpu(CARDS[card])
    dense = known.dense_flop_per_s["fp16"] * share
    return Rates(
        card, known.sm_count or 0, known.memory_bytes_per_s or 0.0, known.compute_capability, 0,
        dict.fromkeys(("fp16", "bf16"), dense),
    )  # fmt: skip


def seconds(made: Product, card: Rates) -> tuple[float, float]:
    """Forward; and both of the backward pass: the input's gradient and the weight's."""

    def one(m: int, n: int, k: int) -> float:
        moved = 2 * (m * k + k * n + m * n)
        return products.matrix_seconds(1, m, n, k, moved, "float16", False, card)

    m, n, k = made[:3]
    return one(m, n, k), one(m, k, n) + one(n, k, m)


def errors(found: Sequence[Product], card: Rates) -> tuple[list[float], list[float]]:
    told = [seconds(made, card) for made in found]
    return (
        [f / made.forward_s - 1 for (f, _), made in zip(told, found, strict=True)],
        [b / made.backward_s - 1 for (_, b), made in zip(told, found, strict=True)],
    )


def fitted(card: str, found: Sequence[Product]) -> float:
    """The share for which the median forward product is neither too long nor too short."""
    low, high = 0.6, 1.1
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if statistics.median(errors(found, rates(card, middle))[0]) > 0 else (low, middle)
    return (low + high) / 2


def figures(off: Sequence[float]) -> dict[str, float]:
    sizes = sorted(map(abs, off))
    return {
        "median": round(statistics.median(sizes), 4),
        "p90": round(sizes[int(0.9 * len(sizes))], 4),
        "signed": round(statistics.median(off), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    found = measured(parser.parse_args().data)
    made: dict[str, Any] = {"commit": commit(), "every": EVERY, "pipeline": products.PIPELINE, "fits": []}
    for pipeline in PIPELINES:
        products.PIPELINE = pipeline
        products.matrix_seconds.cache_clear()
        for card, other in (("A100", "GH200"), ("GH200", "A100")):
            share = fitted(card, found[card])
            line: dict[str, Any] = {"pipeline": pipeline, "fitted_on": card, "share": round(share, 4)}
            for where in (card, other):
                forward, backward = errors(found[where], rates(where, share))
                line[where] = {"products": len(forward), "forward": figures(forward), "backward": figures(backward)}
            made["fits"].append(line)
            print(line)
    (HERE / "results" / "price_products.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
