"""Seconds of an operation that computes little: the bytes it really moves, at the rate such kernels move them."""

from __future__ import annotations

from math import prod

from tunecast.predict.price.rates import Rates

from tunecast.tape.op import CROSSED, OFF_GRID, SPREAD, Op

BANDWIDTH = {"": 0.80, SPREAD: 0.64, CROSSED: 0.25, OFF_GRID: 0.80}
"""Of the data sheet's, for kernels that stream: copies on A100, H100 and H200 reach 0.85 to 0.92."""
FOREACH_BANDWIDTH = 0.74
QUANTISED_UPDATE_FLOPS = 1370
"""bitsandbytes' 8-bit update searches each new state's nearest code, which keeps the arithmetic units busy, not the
memory: an AdamW8bit step of 8.03e9 weights takes 0.21 s on an H200, ten times what its bytes would."""
SOFTMAX = frozenset({"_softmax", "_softmax_backward_data"})
LONG_ROW = 16384
SOFTMAX_BANDWIDTH = 0.42
START_S = 2.0e-6
"""Of a kernel that has nothing to do: what one takes when others wait behind it."""
BOOKKEEPING = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "cublas_workspace",
     "cublaslt_workspace", ""}
)  # fmt: skip
LOOK_UPS = frozenset({"embedding", "index", "index_select", "gather", "take"})
"""They read of a table what they write."""


def is_only_bookkeeping(name: str) -> bool:
    return name in BOOKKEEPING


def moved_bytes(op: Op) -> int:
    if op.name in LOOK_UPS:
        return 2 * op.written_bytes
    if op.name in ("slice_backward", "select_backward"):  # zeros, and the slice copied into them
        return op.written_bytes + 2 * op.read_bytes
    if op.name == "nll_loss_forward":
        return op.written_bytes
    if op.name == "nll_loss_backward":
        return op.written_bytes
    return op.read_bytes + op.written_bytes


def moving_seconds(op: Op, rates: Rates) -> float:
    if op.name == "optimizer_update_8bit_blockwise":
        return prod(op.shapes[0]) * QUANTISED_UPDATE_FLOPS / rates.flop_per_s("float32") + START_S
    if op.name in SOFTMAX and op.shapes[0][-1] <= LONG_ROW:
        return moved_bytes(op) / (rates.bytes_per_s * SOFTMAX_BANDWIDTH) + START_S
    share = FOREACH_BANDWIDTH if op.name.startswith("_foreach") else BANDWIDTH[op.layout]
    return moved_bytes(op) / (rates.bytes_per_s * share) + START_S * op.kernels
