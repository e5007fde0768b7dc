"""What it costs to price one step on all cards of the catalogue at once: with what is compiled, and in Python.

    python benchmarks/pricing.py

CPU milliseconds, the best of many: on a machine that others use too, nothing else repeats. The step is there already.

new      of a structure that was never priced: what is the same for all its steps is found too
sizes    of one that was, with other sizes: what a search asks most
again    the same step on other cards
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).parent.parent / "src")]

from tunecast.errors import Unsupported  # noqa: E402
from tunecast.hardware.catalog import gpus  # noqa: E402
from tunecast.hardware.cluster import cluster_of  # noqa: E402
from tunecast.hardware.spec import Gpu  # noqa: E402
from tunecast.job import job_from_dict  # noqa: E402
from tunecast.job.registry import bundled_config  # noqa: E402
from tunecast.prediction import native  # noqa: E402
from tunecast.prediction.modelled import card_of  # noqa: E402
from tunecast.prediction.price import products, rates_of  # noqa: E402
from tunecast.prediction.price.host import host_of  # noqa: E402
from tunecast.prediction.time.runtime import GpuHost, Lowered  # noqa: E402
from tunecast.tape.step import Step  # noqa: E402
from tunecast.tape.timed import timed_steps  # noqa: E402

MODEL, TIMES = "llama-3.1-8b", 15
SEVERAL: dict[str, Any] = {"hardware": {"gpu": "h100-sxm-80gb", "gpus": 8}}
JOBS: dict[str, dict[str, Any]] = {
    "LoRA, one card": {"method": "lora"},
    "LoRA, DDP on 8": {"method": "lora", **SEVERAL, "parallel": {"data": "ddp"}},
    "full, FSDP on 8": {"method": "full", "gradient_checkpointing": True, **SEVERAL, "parallel": {"data": "fsdp"}},
    "full, ZeRO-3 on 8": {"method": "full", "gradient_checkpointing": True, **SEVERAL, "parallel": {"data": "zero3"}},
}


def priceable() -> list[Gpu]:
    found = []
    for gpu in gpus().values():
        try:
            rates_of(gpu)
        except Unsupported:
            continue
        found.append(gpu)
    return found


def best_ms(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(TIMES):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken) * 1e3


def measured(step: Step, places: list[GpuHost]) -> str:
    def sizes() -> object:
        products.matrix_seconds.cache_clear()
        return Lowered(step).on_all(places)

    def new() -> object:
        step.table.layout.kept.clear()
        return sizes()

    lowered = Lowered(step)
    return " / ".join(f"{best_ms(work):.2f}" for work in (new, sizes, lambda: lowered.on_all(places)))


def main() -> None:
    cards = priceable()
    print(f"{len(cards)} cards; new / sizes / again, ms" + ("" if native.price else " (nothing is compiled)"))
    for name, values in JOBS.items():
        job = job_from_dict({"model": MODEL, "seq_len": 2048, "weights_dtype": "bfloat16", **values})
        (step,) = timed_steps(job, bundled_config(MODEL), card_of(cards[0])).values()
        several = job.hardware.gpus > 1
        places = [GpuHost(gpu, host_of(job), cluster_of(job, gpu) if several else None) for gpu in cards]
        operations, differing = sum(map(len, step.table.places)), len(step.table.distinct)
        line = f"{name:20} {operations:6} operations, {differing} that differ"
        if native.price:
            line += f"   compiled {measured(step, places)}"
        with patch.object(native, "price", None):
            line += f"   in Python {measured(step, places)}"
        print(line)


if __name__ == "__main__":
    main()
