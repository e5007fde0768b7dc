"""Matrix products on a card of ten multiprocessors, on paper."""

from __future__ import annotations

from math import ceil

import pytest

from tunecast.hardware.catalog import gpus
from tunecast.prediction.price import kind_of, op_seconds, rates_of
from tunecast.prediction.price.offload import HostLink
from tunecast.prediction.price.products import (
    BANDWIDTH,
    OFF_GRID_RATE,
    PIPELINE,
    START_S,
    dimensions,
    matrix_seconds,
)
from tunecast.prediction.price.rates import Rates
from tunecast.tape.op import OFF_GRID, Op

TEN = Rates(
    name="ten",
    vendor="NVIDIA",
    sm_count=10,
    bytes_per_s=1e12,
    compute_capability=(8, 0),
    l2_bytes=0,
    by_dtype={"bf16": 1e13, "fp16": 1e13, "tf32": 5e12, "fp32": 1e12, "fp8": 2e13, "fp4": 4e13, "int8": 2e13},
    host=HostLink(25e9, 25e9),
)


def seconds(m: int, n: int, k: int, dtype: str = "bfloat16", batch: int = 1, off_grid: bool = False) -> float:
    return matrix_seconds(batch, m, n, k, 0, dtype, off_grid, TEN)


def test_ten_tiles_are_one_wave_and_eleven_are_two() -> None:
    # 256 x 128 tiles on an SM of 1e12 FLOP/s: 2 * 256 * 128 * (4096 + 128) FLOPs each
    tile_s = 2 * 256 * 128 * (4096 + PIPELINE) / 1e12
    assert seconds(2560, 128, 4096) == pytest.approx(tile_s + START_S)
    assert seconds(25600, 1280, 4096) == pytest.approx(100 * tile_s + START_S, rel=0.01)
    eleven = seconds(11 * 256, 128, 4096)
    assert tile_s < eleven - START_S <= 2 * tile_s


def test_a_product_of_few_tiles_splits_its_inner_dimension() -> None:
    whole = 2 * 256 * 128 * (65536 + PIPELINE) / 1e12
    assert seconds(256, 128, 65536) < whole / 4


def test_bytes_are_the_floor() -> None:
    moved = 10**9
    assert matrix_seconds(1, 16, 16, 16, moved, "bfloat16", False, TEN) == pytest.approx(
        moved / (1e12 * BANDWIDTH) + START_S
    )


def test_rows_off_the_grid_take_none_of_the_fast_kernels() -> None:
    on, off = seconds(25600, 1280, 4096), seconds(25600, 1280, 4096, off_grid=True)
    assert (off - START_S) / (on - START_S) == pytest.approx(1 / OFF_GRID_RATE)


def test_each_dtype_has_its_rate() -> None:
    size = (25600, 1280, 8192)
    assert seconds(*size, "float8") < seconds(*size) < seconds(*size, "float32")


def test_dimensions_are_read_off_the_shapes() -> None:
    assert dimensions(Op("mm", flops=2 * 8 * 3 * 5, shapes=((8, 3), (3, 5)))) == (1, 8, 5, 3)
    assert dimensions(Op("addmm", flops=2 * 8 * 3 * 5, shapes=((5,), (8, 3), (3, 5)))) == (1, 8, 5, 3)
    assert dimensions(Op("bmm", flops=2 * 4 * 8 * 3 * 5, shapes=((4, 8, 3), (4, 3, 5)))) == (4, 8, 5, 3)
    assert dimensions(Op("_grouped_mm", flops=1, shapes=((100, 3), (4, 3, 5), (4,)))) == (4, 25, 5, 3)
    assert dimensions(Op("mystery_mm", flops=2 * 10**9)) == (1, 1000, 1000, 1000)


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h200-sxm-141gb", "l40s", "rtx-4090", "b200-sxm-180gb", "t4"])
@pytest.mark.parametrize(
    "m, n, k", [(16, 16, 16), (2048, 4096, 4096), (8192, 128256, 4096), (4096, 16, 14336), (1, 1, 1)]
)
def test_no_product_beats_its_card(name: str, m: int, n: int, k: int) -> None:
    card = gpus()[name]
    op = Op("mm", flops=2 * m * n * k, read_bytes=2 * (m * k + k * n), written_bytes=2 * m * n, dtype="float16",
            shapes=((m, k), (k, n)))  # fmt: skip
    taken = op_seconds(op, card)
    assert taken >= op.flops / card.dense_flop_per_s["fp16"]
    assert taken >= (op.read_bytes + op.written_bytes) / (card.memory_bytes_per_s or 0)


def test_the_last_wave_counts_whole() -> None:
    rates = rates_of(gpus()["h200-sxm-141gb"])
    assert rates.sm_count == 132
    one, next_ = (matrix_seconds(1, 256 * tiles, 128, 8192, 0, "bfloat16", False, rates) for tiles in (132, 140))
    assert next_ > one * 1.05
    assert ceil(140 / 132) == 2


def test_an_operation_off_the_grid_is_told_by_its_layout() -> None:
    card = gpus()["h200-sxm-141gb"]
    op = Op("mm", flops=2 * 8192 * 768 * 50257, dtype="bfloat16", shapes=((8192, 768), (768, 50257)))
    assert op_seconds(op._replace(layout=OFF_GRID), card) > 4 * op_seconds(op, card)


def test_names_of_products() -> None:
    assert kind_of("mm") == kind_of("aten::addmm") == kind_of("_scaled_mm") == "products"
    assert kind_of("mul") == "moving"
