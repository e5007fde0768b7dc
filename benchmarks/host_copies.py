"""What crosses between host and card, and what an optimizer on the host takes: measured, a JSON line each.

    python benchmarks/host_copies.py OUT.jsonl

Copies both ways, from pinned and from pageable memory; AdamW of torch on the host, fused and not, in float32; float8
products of torch, one scale a tensor and one a row, with the casts and the largest values they need.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from tunecast.learn.measure import seconds_of as on_card

COPIES = (1 << 20, 1 << 24, 1 << 28, 1 << 30)
PARAMETERS = (50_000_000, 400_000_000)
PRODUCTS = ((2048, 4096, 4096), (8192, 4096, 4096), (8192, 14336, 4096), (8192, 4096, 14336), (16384, 8192, 8192))
REPEATS = 7


def seconds_of(torch: Any, run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The median, by the host's clock with the card idle before and after."""
    times = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return sorted(times[2:])[repeats // 2]


def copies(torch: Any, told: Callable[[dict[str, Any]], None]) -> None:
    for nbytes in COPIES:
        card = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        for pinned in (True, False):
            host = torch.ones(nbytes, dtype=torch.uint8)
            host = host.pin_memory() if pinned else host
            to_card = partial(card.copy_, host, non_blocking=pinned)
            to_host = partial(host.copy_, card, non_blocking=pinned)
            for name, run in (("copy_from_host", to_card), ("copy_to_host", to_host)):
                told({"kind": name, "pinned": pinned, "bytes": nbytes, "seconds": seconds_of(torch, run)})


def host_optimizer(torch: Any, told: Callable[[dict[str, Any]], None]) -> None:
    for parameters in PARAMETERS:
        for how in ({"fused": True}, {"foreach": True}, {"foreach": False}):
            weight = torch.nn.Parameter(torch.randn(parameters))
            weight.grad = torch.randn(parameters)
            optimizer = torch.optim.AdamW([weight], **how)
            row = {"kind": "host_optimizer", "parameters": parameters, "threads": torch.get_num_threads(), **how}
            told({**row, "seconds": seconds_of(torch, optimizer.step, 3)})


def float8(torch: Any, told: Callable[[dict[str, Any]], None]) -> None:
    kind = torch.float8_e4m3fn
    for m, n, k in PRODUCTS:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        one = torch.ones((), device="cuda")
        rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
        a8, b8 = a.to(kind), b.to(kind).t()
        multiply = partial(torch._scaled_mm, a8, b8, out_dtype=torch.bfloat16)
        for name, run in (
            ("bfloat16", partial(torch.matmul, a, b.t())),
            ("float8_tensorwise", partial(multiply, scale_a=one, scale_b=one)),
            ("float8_tensorwise_fast", partial(multiply, scale_a=one, scale_b=one, use_fast_accum=True)),
            ("float8_rowwise", partial(multiply, scale_a=rows, scale_b=columns, use_fast_accum=True)),
            ("cast", partial(a.to, kind)),
            ("largest", lambda a=a: a.abs().max()),
            ("largest_of_rows", lambda a=a: a.abs().amax(-1, keepdim=True)),
        ):
            told({"kind": name, "m": m, "n": n, "k": k, "seconds": on_card(torch, "cuda", run, 20)})


def main() -> None:
    import torch

    with open(sys.argv[1], "w", encoding="utf-8") as out:

        def told(row: dict[str, Any]) -> None:
            out.write(json.dumps(row) + "\n")
            out.flush()

        told({"kind": "machine", "device": torch.cuda.get_device_name(), "torch": torch.__version__})
        copies(torch, told)
        host_optimizer(torch, told)
        float8(torch, told)


if __name__ == "__main__":
    main()
