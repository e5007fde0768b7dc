"""Seconds of an operation that computes little: the bytes it really moves, at the rate such kernels move them.

The shares of a data sheet's bandwidth are those of 38 steps on an H200 and hold on 70 of an A100
(benchmarks/time_h200.py says how well, and what they become when a model is left out).
"""

from __future__ import annotations

from math import prod

from tunecast.prediction.price.rates import Rates
from tunecast.tape.op import CROSSED, OFF_GRID, SPREAD, Op

STREAMING = 0.80
"""Everything is one row: 16 bytes a thread. A copy alone reaches 0.85 to 0.92."""
BANDWIDTH = {"": STREAMING, OFF_GRID: STREAMING, SPREAD: 0.64, CROSSED: 0.25}
"""By layout (tape/op.py). Spread: an element a thread, each with its own address. Crossed: a line of the cache for each
element, of which a part is found again; DoRA's `weight + lora_weight.T` shows it."""
LISTS = 0.74
"""`_foreach` kernels: 320 blocks a launch leave the last ones alone (three optimizers on two models)."""
SOFTMAX = frozenset({"_softmax", "_softmax_backward_data"})
SHORT_ROWS, SHORT_ROW_BANDWIDTH = 16384, 0.42
"""A block of threads a row, which waits for its maximum and its sum: eager attention, rows of 2,048 (two models)."""
UPDATE_8BIT = "optimizer_update_8bit_blockwise"
UPDATE_8BIT_FLOPS = 1160
"""Of float32, a weight: the nearest code of each new state is searched, which takes ten times what the bytes would (one
run: AdamW8bit on 8.03e9 weights, 0.21 s on an H200)."""
START_S = 2.0e-6
"""Of a kernel that has nothing to do, with another waiting behind it."""
BOOKKEEPING = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "cublas_workspace",
     "cublaslt_workspace", ""}
)  # fmt: skip
LOOK_UPS = frozenset({"embedding", "index", "index_select", "gather", "take"})
"""They read of a table what they write."""
SLICES_BACK = frozenset({"slice_backward", "select_backward"})
"""Zeros, and the slice copied into them."""
ONE_A_ROW = frozenset({"nll_loss_forward", "nll_loss_backward"})
"""They read one number of each row."""


def is_only_bookkeeping(name: str) -> bool:
    return name in BOOKKEEPING


def moved_bytes(op: Op) -> int:
    name = op.name
    if name in LOOK_UPS:
        return 2 * op.written_bytes
    if name in SLICES_BACK:
        return op.written_bytes + 2 * op.read_bytes
    if name in ONE_A_ROW:
        return op.written_bytes
    return op.read_bytes + op.written_bytes


def moving_seconds(op: Op, rates: Rates) -> float:
    nbytes, flops, start_s = moving_terms(op)
    return nbytes / rates.bytes_per_s + flops / rates.flop_per_s("float32") + start_s


def moving_terms(op: Op) -> tuple[float, float, float]:
    """Bytes at a data sheet's bandwidth, FLOPs of float32 and seconds that it takes, one after another, on any card."""
    if op.name == UPDATE_8BIT:
        return 0.0, prod(op.shapes[0]) * UPDATE_8BIT_FLOPS, START_S
    return moved_bytes(op) / share_of_bandwidth(op), 0.0, START_S * op.kernels


def share_of_bandwidth(op: Op) -> float:
    if op.name.startswith("_foreach"):
        return LISTS
    if op.name in SOFTMAX and op.shapes and op.shapes[0][-1:] <= (SHORT_ROWS,):
        return SHORT_ROW_BANDWIDTH
    return BANDWIDTH[op.layout]
