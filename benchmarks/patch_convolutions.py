"""What the convolutions of vision and audio towers ask the allocator for on a card: data/patch_convolutions.jsonl.

    python benchmarks/patch_convolutions.py > benchmarks/data/patch_convolutions.jsonl

cuDNN chooses an algorithm by heuristics that no source shows, and borrows a workspace for it. Each line is one forward
(and, where the weight is trained, one backward) pass: bytes asked for (positive) and let go (negative), in order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "qwen2.5-vl": (lambda: nn.Conv3d(3, 1280, (2, 14, 14), (2, 14, 14), bias=False), (5184, 3, 2, 14, 14)),
    "siglip": (lambda: nn.Conv2d(3, 1152, 14, 14), (2, 3, 896, 896)),
    "clip": (lambda: nn.Conv2d(3, 1024, 14, 14, bias=False), (4, 3, 336, 336)),
    "pixtral": (lambda: nn.Conv2d(3, 1024, 14, 14, bias=False), (1, 3, 700, 1120)),
    "qwen3-vl": (lambda: nn.Conv3d(3, 1152, (2, 16, 16), (2, 16, 16)), (4096, 3, 2, 16, 16)),
    "whisper": (lambda: nn.Conv1d(128, 1280, 3, padding=1), (2, 128, 3000)),
    "whisper, second": (lambda: nn.Conv1d(1280, 1280, 3, 2, padding=1), (2, 1280, 3000)),
}
REPEATS = 10


def events(run: Callable[[], object]) -> list[int]:
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    run()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_requested": -1}
    return [signs[event["action"]] * event["size"] for event in trace if event["action"] in signs]


def main() -> None:
    for dtype, autocast in ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, True)):
        for trained in (False, True):
            for name, (make, shape) in CASES.items():
                convolution = make().to("cuda", dtype).requires_grad_(trained)
                x = torch.randn(shape, device="cuda", dtype=dtype)

                def forward(convolution: Any = convolution, x: Any = x, autocast: bool = autocast) -> Any:
                    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                        return convolution(x)

                def run(forward: Any = forward, trained: bool = trained) -> None:
                    y = forward()
                    if trained:
                        y.sum().backward()

                run()
                convolution.zero_grad()
                seen = events(run)
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(REPEATS):
                    forward()
                torch.cuda.synchronize()
                forward_s = (time.perf_counter() - began) / REPEATS
                row = {"case": name, "dtype": str(dtype), "autocast": autocast, "trained": trained, "shape": shape}
                print(json.dumps({**row, "events": seen, "forward_s": round(forward_s, 6)}), flush=True)


if __name__ == "__main__":
    main()
