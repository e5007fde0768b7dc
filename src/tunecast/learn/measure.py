"""Run by the Python that has torch: measure this machine's card, and print what was found as one JSON object.

Needs torch and the standard library alone. Every figure is a median of several runs after a warm-up; the device's own
clock (events) times what runs on the device, the host's clock what the host does. Nothing is written to disk.

    python measure.py [--seconds 100] [--device cuda]

`--device cpu` measures the processor with small sizes: for trying this program where there is no card.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

PRODUCTS = (
    # rows, columns, inner: an 8B model's layers for 2,048 and 8,192 tokens, and the square everybody quotes
    (2048, 4096, 4096), (8192, 4096, 4096), (8192, 14336, 4096), (8192, 4096, 14336), (8192, 8192, 8192),
)  # fmt: skip
DTYPES = ("bfloat16", "float16", "float32")
COPIES = (1 << 26, 1 << 28, 1 << 30)
ATTENTIONS = ((4, 32, 1024, 128), (2, 32, 2048, 128), (1, 32, 8192, 128))
"""Batch, heads, length, width."""
SMALL_PRODUCTS, SMALL_COPIES, SMALL_ATTENTIONS = ((256, 256, 256),), (1 << 20,), ((1, 2, 64, 32),)
LAYERS = 100
REPEATS = 7
REDUCED = (1 << 20, 1 << 24, 1 << 28)
PORT = 29531


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(argv)
    try:
        import torch
    except ImportError:
        return failed("this Python has no torch")
    if given.device == "cuda" and not torch.cuda.is_available():
        return failed("torch sees no GPU on this machine")
    began = time.monotonic()
    found = measured(torch, given.device, began + given.seconds)
    found["seconds"] = round(time.monotonic() - began, 3)
    json.dump(found, sys.stdout)
    return 0


def failed(why: str) -> int:
    json.dump({"error": why}, sys.stdout)
    return 1


def measured(torch: Any, device: str, deadline: float) -> dict[str, Any]:
    on_card = device == "cuda"
    told(f"measuring {torch.cuda.get_device_name() if on_card else 'the processor'}")
    found: dict[str, Any] = {
        "schema": "tunecast.calibration/1",
        "device": torch.cuda.get_device_name() if on_card else "cpu",
        "count": torch.cuda.device_count() if on_card else 1,
        "memory_bytes": torch.cuda.mem_get_info()[1] if on_card else None,
        "capability": list(torch.cuda.get_device_capability()) if on_card else None,
        "torch": torch.__version__,
    }
    parts: list[tuple[str, Callable[[], Iterator[dict[str, Any]]]]] = [
        ("launches", lambda: launches(torch, device)),
        ("copies", lambda: copies(torch, device)),
        ("products", lambda: products(torch, device)),
        ("attentions", lambda: attentions(torch, device)),
    ]
    if on_card and found["count"] > 1:
        parts.append(("all_reduces", lambda: all_reduces(torch, found["count"])))
    for name, part in parts:
        told(name)
        found[name] = []
        for row in part():
            found[name].append(row)
            if time.monotonic() > deadline:
                found["cut_short"] = name
                return found
    return found


def told(what: str) -> None:
    print(f"calibrate: {what}", file=sys.stderr, flush=True)


def seconds_of(torch: Any, device: str, run: Callable[[], Any], inner: int) -> float:
    """Of one `run`, on the device."""
    for _ in range(3):
        run()
    times: list[float] = []
    for _ in range(REPEATS):
        if device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            for _ in range(inner):
                run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3 / inner)
        else:
            began = time.perf_counter()
            for _ in range(inner):
                run()
            times.append((time.perf_counter() - began) / inner)
    return sorted(times)[REPEATS // 2]


def products(torch: Any, device: str) -> Iterator[dict[str, Any]]:
    """Random contents: zeros draw less power and run faster than any training."""
    sizes = PRODUCTS if device == "cuda" else SMALL_PRODUCTS
    for dtype in DTYPES if device == "cuda" else ("float32",):
        kind = getattr(torch, dtype)
        if device == "cuda" and dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
            continue
        for rows, columns, inner in sizes:
            a = torch.randn(rows, inner, device=device, dtype=kind)
            b = torch.randn(columns, inner, device=device, dtype=kind)
            seconds = seconds_of(torch, device, partial(torch.matmul, a, b.t()), 10)
            yield {"dtype": dtype, "m": rows, "n": columns, "k": inner, "seconds": seconds}
            del a, b


def copies(torch: Any, device: str) -> Iterator[dict[str, Any]]:
    for nbytes in COPIES if device == "cuda" else SMALL_COPIES:
        source = torch.empty(nbytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        yield {"bytes": nbytes, "seconds": seconds_of(torch, device, partial(target.copy_, source), 10)}
        del source, target


def launches(torch: Any, device: str) -> Iterator[dict[str, Any]]:
    """What an operation costs the host, called as training calls it: through modules, with history, and backward by the
    engine. Tensors are too small for the device to be the slower one."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):  # type: ignore[misc]
        operations = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operations += not function.is_view
            return function(*args, **(kwargs or {}))

    nn = torch.nn

    class Layer(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            return x + self.down(nn.functional.silu(self.up(self.norm(x)))) * 0.5

    model = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(device)
    x = torch.ones(4, 64, device=device)
    with Count() as forward:
        y = model(x)
    with Count() as backward:
        y.sum().backward()
    rows = []
    for _ in range(REPEATS + 2):
        synchronise(torch, device)
        began = time.perf_counter()
        y = model(x)
        made = time.perf_counter()
        synchronise(torch, device)
        started = time.perf_counter()
        y.sum().backward()
        ended = time.perf_counter()
        rows.append(((made - began) / forward.operations, (ended - started) / backward.operations))
        model.zero_grad(set_to_none=True)
    middle = REPEATS // 2
    yield {
        "forward_s": sorted(row[0] for row in rows[2:])[middle],
        "backward_s": sorted(row[1] for row in rows[2:])[middle],
        "operations": forward.operations + backward.operations,
    }


def synchronise(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def attentions(torch: Any, device: str) -> Iterator[dict[str, Any]]:
    kind = torch.float16 if device == "cuda" else torch.float32
    if device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        kind = torch.bfloat16
    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    for batch, heads, length, width in ATTENTIONS if device == "cuda" else SMALL_ATTENTIONS:
        q, k, v = (
            torch.randn(batch, heads, length, width, device=device, dtype=kind, requires_grad=True) for _ in range(3)
        )
        forward_s = seconds_of(torch, device, partial(attend, q, k, v), 5)
        out = attend(q, k, v)
        gradient = torch.randn_like(out)
        backward = partial(torch.autograd.grad, out, (q, k, v), gradient, retain_graph=True)
        backward_s = seconds_of(torch, device, backward, 5)
        yield {
            "batch": batch, "heads": heads, "length": length, "width": width, "dtype": str(kind).removeprefix("torch."),
            "forward_s": forward_s, "backward_s": backward_s,
        }  # fmt: skip


def all_reduces(torch: Any, count: int) -> Iterator[dict[str, Any]]:
    """Between the cards of this machine, one process each."""
    import torch.multiprocessing as processes

    with processes.get_context("spawn").Manager() as manager:
        rows = manager.list()
        processes.spawn(one_rank, args=(count, rows), nprocs=count)
        yield from list(rows)


def one_rank(rank: int, count: int, rows: Any) -> None:
    import torch
    import torch.distributed as distributed

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(PORT))
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", rank=rank, world_size=count)
    for nbytes in REDUCED:
        buffer = torch.ones(nbytes // 2, dtype=torch.bfloat16, device="cuda")
        seconds = seconds_of(torch, "cuda", partial(distributed.all_reduce, buffer), 5)
        if rank == 0:
            rows.append({"ranks": count, "bytes": nbytes, "seconds": seconds})
    distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
