"""Run by the Python that has torch: measure this machine's card, and print what was found as one JSON object.

Needs torch and the standard library alone; with transformers, how long its Trainer takes to start is measured too.
Rates are medians of several runs after a warm-up; the device's own clock (events) times what runs on the device, the
host's clock what the host does. Nothing is written to disk.

    python measure.py [--seconds 100] [--device cuda]

`--device cpu` measures the processor with small sizes: for trying this program where there is no card.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
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
PLANNED = tuple(base + beside for base in (192, 448, 704) for beside in (64, 0, 8, 12, 14, 15))
"""Multiples of 128, 64, 8, 4, 2 and 1: cuDNN compiles a kernel for the first of each, and plans for every length."""
ALIGNED = (128, 64, 8, 4, 2, 1)
WIDTHS = (64, 128)
"""Of a head: each has kernels of its own."""
START = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
torch.zeros(1, device=%r)
"""
STARTS = 2
LONGEST_START_S = 60.0
SMALL_PRODUCTS, SMALL_COPIES, SMALL_ATTENTIONS = ((256, 256, 256),), (1 << 20,), ((1, 2, 64, 32),)
LAYERS, SMALL_LAYERS = 100, 10
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
        return refuse("this Python has no torch")
    if given.device == "cuda" and not torch.cuda.is_available():
        return refuse("torch sees no GPU on this machine")
    began = time.monotonic()
    found = measurements(torch, given.device, began + given.seconds)
    found["seconds"] = round(time.monotonic() - began, 3)
    json.dump(found, sys.stdout)
    return 0


def refuse(why: str) -> int:
    json.dump({"error": why}, sys.stdout)
    return 1


def measurements(torch: Any, device: str, deadline: float) -> dict[str, Any]:
    on_card = device == "cuda"
    say(f"measuring {torch.cuda.get_device_name() if on_card else 'the processor'}")
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
        ("plans", lambda: plans(torch, device)),
        ("starts", lambda: starts(device)),
    ]
    if on_card and found["count"] > 1:
        parts.append(("all_reduces", lambda: all_reduces(torch, found["count"])))
    for name, part in parts:
        say(name)
        found[name] = []
        if name != "launches":  # a host's speed moves from second to second
            found["launches"] += launches(torch, device)
        for row in part():
            found[name].append(row)
            if time.monotonic() > deadline:
                found["cut_short"] = name
                return found
    return found


def say(what: str) -> None:
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

    model = nn.Sequential(*(Layer() for _ in range(LAYERS if device == "cuda" else SMALL_LAYERS))).to(device)
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


def plans(torch: Any, device: str) -> Iterator[dict[str, Any]]:
    """What attention of a length takes the first time more than the second: where the kernel is cuDNN's, it is planned
    for every shape, on the host. Called as transformers calls it for padded rows; the device has nothing else to do."""
    kind = torch.bfloat16
    if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        kind = torch.float16
    attend = torch.nn.functional.scaled_dot_product_attention

    def seconds(run: Callable[[], Any]) -> float:
        synchronise(torch, device)
        began = time.perf_counter()
        run()
        synchronise(torch, device)
        return time.perf_counter() - began

    for width in WIDTHS if device == "cuda" else WIDTHS[:1]:
        seen: set[int] = set()
        for length in PLANNED if device == "cuda" else PLANNED[:7]:
            shape = 4, 16, length, width
            q, k, v = (torch.randn(*shape, device=device, dtype=kind, requires_grad=True) for _ in range(3))
            mask = torch.ones(length, length, dtype=torch.bool, device=device).tril().expand(4, 1, -1, -1)
            gradient = torch.randn_like(q)
            forward = partial(attend, q, k, v, attn_mask=mask)
            once, again = (
                (seconds(torch.no_grad()(forward)), seconds(forward), seconds(partial(forward().backward, gradient)))
                for _ in range(2)
            )
            evaluation_s, forward_s, backward_s = (
                max(0.0, first - second) for first, second in zip(once, again, strict=True)
            )
            multiple = next(each for each in ALIGNED if length % each == 0)
            yield {
                "width": width, "length": length, "compiled": multiple not in seen,
                "evaluation_s": evaluation_s, "forward_s": forward_s, "backward_s": backward_s,
            }  # fmt: skip
            seen.add(multiple)


def starts(device: str) -> Iterator[dict[str, Any]]:
    """A program that imports what the Trainer needs, wakes the card and ends: nothing where transformers is not here,
    or loads so slowly that nobody waits for it. The first finds files on disk that the next find in memory."""
    for _ in range(STARTS if device == "cuda" else 1):
        began = time.perf_counter()
        try:
            ran = subprocess.run(
                [sys.executable, "-c", START % device], capture_output=True, timeout=LONGEST_START_S, check=False
            )
        except subprocess.TimeoutExpired:  # what was measured before is worth having
            return
        if ran.returncode:
            return
        yield {"seconds": time.perf_counter() - began}


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
