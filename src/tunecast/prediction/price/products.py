"""Seconds of a matrix product: the fewest over tile shapes of whole waves of tiles, or what its bytes take.

A kernel cuts the result into tiles, a multiprocessor works on one at a time, and the last wave takes as long as a full
one. Each tile also fills and drains its pipeline, as if its inner dimension were `PIPELINE` longer. A product with few
tiles and a long inner dimension splits that too and adds the parts up.

    t = min over tiles of ceil(tiles / SMs) * 2 * rows * columns * (K + PIPELINE) / (rate of an SM * efficiency)

Source   16,146 published products in float16 on an A100 and a GH200 (benchmarks/price_products.py): with the share of
         the dense rate taken from one card, the median error on the other is 3.5 % (GH200) and 5.8 % (A100) forward,
         7 and 9 % backward, too long both times
Ignored  which of its kernels cuBLAS really takes, L2 misses of very large factors
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, prod

from tunecast.prediction.price.rates import BACKWARD, Rates
from tunecast.tape.op import OFF_GRID, Op

TILES = (
    (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (256, 64, 0.9), (64, 256, 0.9), (128, 64, 0.8), (64, 128, 0.8),
    (64, 64, 0.65), (64, 32, 0.4), (32, 64, 0.4), (64, 16, 0.25), (16, 64, 0.25),
)  # fmt: skip
"""Rows, columns, and what a multiprocessor reaches with such a tile: smaller ones read more for each product."""
PLAIN_EFFICIENCY = 0.85
"""The least where no tensor cores wait to be fed: products of float32."""
SPLITS = (1, 2, 4, 8, 16)
SURELY = 1 + 1e-12
"""A bound this much beyond the best one is, however both were rounded."""
PIPELINE = 128
BANDWIDTH = 0.80
"""Of the data sheet's, as kernels that stream (`moving.py`)."""
START_S = 3e-6
OFF_GRID_RATE = 0.16
"""Of the rate, where rows start off multiples of 16 bytes: none of the fast kernels can load them. GPT-2's head of
50,257 words (one run on an H200); Granite's of 49,155 agrees."""
PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_scaled_mm_v2", "_int_mm", "_grouped_mm", "int8_linear_matmul",
     "mv", "addmv", "gemm_4bit", "linear", "dot"}
)  # fmt: skip
INT8_PRODUCTS = frozenset({"_int_mm", "int8_linear_matmul"})
WITH_SUMMAND = frozenset({"addmm", "baddbmm", "addmv"})


def is_product(name: str) -> bool:
    return plain(name) in PRODUCTS


def plain(name: str) -> str:
    return name.removeprefix("aten::").rstrip("_")


def product_seconds(op: Op, rates: Rates) -> float:
    return matrix_seconds(*product_terms(op), rates)


def product_terms(op: Op) -> tuple[int, int, int, int, int, str, bool]:
    """Of `matrix_seconds`, what is the same on any card."""
    name = plain(op.name)
    dtype = "int8" if name in INT8_PRODUCTS else op.dtype
    if "scaled_mm" in name:
        dtype = "float4" if "float4" in op.dtype else f"float8{BACKWARD}" if op.by_engine else "float8"
    return *dimensions(op), op.read_bytes + op.written_bytes, dtype, op.layout == OFF_GRID


def dimensions(op: Op) -> tuple[int, int, int, int]:
    """(batch, rows, columns, inner) as far as the shapes tell; else a cube of as many FLOPs."""
    name = plain(op.name)
    shapes = op.shapes[1:] if name in WITH_SUMMAND else op.shapes
    if len(shapes) >= 2 and len(shapes[0]) == 2 and name == "_grouped_mm":
        if len(shapes[1]) == 3:  # rows of all groups, a factor for each
            groups, k, n = shapes[1]
            return groups, max(1, ceil(shapes[0][0] / groups)), n, k
        if len(shapes) > 2 and shapes[2]:  # a factor's gradient for each group
            groups = shapes[2][0]
            return groups, shapes[0][0], shapes[1][1], max(1, ceil(shapes[0][1] / groups))
    if len(shapes) >= 2 and shapes[0] and shapes[1] and op.flops:
        k, m, batch = shapes[0][-1], prod(shapes[0][-2:-1]), prod(shapes[0][:-2])
        if k and m and batch:
            return batch, m, max(1, op.flops // (2 * k * m * batch)), k
    side = max(1, round((op.flops / 2) ** (1 / 3)))
    return 1, side, side, side


@lru_cache(maxsize=200_000)
def matrix_seconds(
    batch: int, m: int, n: int, k: int, moved_bytes: int, dtype: str, off_grid: bool, rates: Rates
) -> float:
    sms = rates.sm_count
    rate = rates.flop_per_s(dtype)
    reached = rate * (OFF_GRID_RATE if off_grid else 1.0)
    per_sm = reached / sms
    # filling a pipeline takes a time, not so many products: where those are slow it is fewer of them, where fast more
    # (float8 on an H800, 8192 x 8192: 1129, 1343, 1467 and 1507 TFLOP/s at K of 1, 2, 4 and 8 thousand; tilelang)
    fill = PIPELINE * rate / rates.flop_per_s("bfloat16")
    least = PLAIN_EFFICIENCY if dtype == "float32" else 0.0
    memory = rates.bytes_per_s * BANDWIDTH
    floor_s = moved_bytes / memory
    work = 2 * batch * m * n * (k + fill)
    best = float("inf")
    for (
        rows,
        columns,
        efficiency,
    ) in TILES:  # the best first: once whole waves of a kind are slower, all that follow are
        efficiency = max(least, efficiency)
        if best <= floor_s or work / (reached * efficiency) > best * SURELY:
            break
        tiles = batch * ceil(m / rows) * ceil(n / columns)
        for split in SPLITS if tiles < sms else (1,):
            waves = ceil(tiles * split / sms)
            compute = waves * 2 * rows * columns * (k / split + fill) / (per_sm * efficiency)
            parts = 0.0 if split == 1 else (split + 1) * 4 * batch * m * n / memory
            best = min(best, compute + parts)
    return max(best, floor_s) + START_S
