"""Seconds of a matrix product: the fewest over tile shapes of whole waves of tiles, or what its bytes take.

A kernel cuts the result into tiles, a multiprocessor works on one at a time, and the last wave takes as long as a full
one. Each tile also fills and drains its pipeline, as if its inner dimension were `PIPELINE` longer. A product with few
tiles and a long inner dimension splits that too and adds the parts up.

Source   7,371 products of an A100 and 8,775 of a GH200 in float16 (published; `benchmarks/price_products.py`).
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, prod

from tunecast.predict.price.rates import Rates

from tunecast.tape.op import OFF_GRID, Op

TILES = (
    (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (256, 64, 0.9), (64, 256, 0.9), (128, 64, 0.8), (64, 128, 0.8),
    (64, 64, 0.65), (64, 32, 0.4), (32, 64, 0.4),
)  # fmt: skip
"""Rows, columns, and what a multiprocessor reaches with such a tile: smaller ones read more for each product."""
SPLITS = (1, 2, 4, 8, 16)
PIPELINE = 128
BANDWIDTH = 0.80
SUSTAINED = 0.845
"""Of the best product anyone measured on a card, what products reach in the middle of a training step."""
START_S = 3e-6
OFF_GRID_RATE = 0.16
"""Of a rate, where rows start off multiples of 16 bytes: none of the fast kernels can load them."""
PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_scaled_mm_v2", "_int_mm", "_grouped_mm", "int8_linear_matmul", "mv",
     "addmv", "gemm_4bit", "einsum", "linear", "dot"}
)  # fmt: skip
LOW = ("float8", "float4")
ITEMSIZE = {"float32": 4, "int32": 4, "float64": 8}


def is_product(name: str) -> bool:
    return name.removeprefix("aten::").rstrip("_") in PRODUCTS


def product_seconds(op: Op, rates: Rates) -> float:
    dtype = op.dtype
    if op.name in ("_int_mm", "int8_linear_matmul"):
        dtype = "int8"
    elif "scaled_mm" in op.name and dtype not in LOW:  # torch's name says what it multiplies, the dtype what it writes
        dtype = "float8"
    batch, m, n, k = dimensions(op)
    return matrix_seconds(batch, m, n, k, op.read_bytes + op.written_bytes, dtype, op.layout == OFF_GRID, rates)


def dimensions(op: Op) -> tuple[int, int, int, int]:
    """(batch, rows, columns, inner) as far as the shapes tell; else a product of as many FLOPs with a long inner side."""
    name = op.name.removeprefix("aten::").rstrip("_")
    shapes = op.shapes[1:] if name in ("addmm", "baddbmm", "addmv") else op.shapes
    if name == "_grouped_mm" and len(shapes) >= 2 and len(shapes[0]) == 2 and len(shapes[1]) == 3:
        groups, k, n = shapes[1]
        return groups, max(1, ceil(shapes[0][0] / groups)), n, k
    if len(shapes) >= 2 and shapes[0] and shapes[1]:
        k = shapes[0][-1]
        rows = shapes[0][-2] if len(shapes[0]) > 1 else 1
        batch = prod(shapes[0][:-2])
        if op.flops > 0 and k > 0 and rows > 0:
            return max(1, batch), rows, max(1, op.flops // (2 * k * rows * max(1, batch))), k
    side = max(1, round((op.flops / 2) ** (1 / 3)))
    return 1, side, side, side


@lru_cache(maxsize=200_000)
def matrix_seconds(batch: int, m: int, n: int, k: int, moved_bytes: int, dtype: str, off_grid: bool, rates: Rates) -> float:
    sms = rates.sm_count
    per_sm = rates.flop_per_s(dtype) * SUSTAINED * (OFF_GRID_RATE if off_grid else 1.0) / sms
    memory = rates.bytes_per_s * BANDWIDTH
    best = float("inf")
    for rows, columns, efficiency in TILES:
        tiles = batch * ceil(m / rows) * ceil(n / columns)
        for split in SPLITS if tiles < sms else (1,):
            waves = ceil(tiles * split / sms)
            compute = waves * 2 * rows * columns * (k / split + PIPELINE) / (per_sm * efficiency)
            parts = 0.0 if split == 1 else (split + 1) * 4 * batch * m * n / memory
            best = min(best, compute + parts)
    return max(best, moved_bytes / memory) + START_S
