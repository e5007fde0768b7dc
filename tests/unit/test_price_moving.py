"""Operations that move memory, byte by byte."""

from __future__ import annotations

import pytest

from tunecast.hardware.catalog import gpus
from tunecast.prediction.price import kind_of, op_seconds
from tunecast.prediction.price.moving import BANDWIDTH, LISTS, START_S, STREAMING, moved_bytes
from tunecast.tape.kernels.lists import LISTS as MOVED
from tunecast.tape.kernels.lists import list_launches
from tunecast.tape.op import COLLECTIVES, CROSSED, HOOK, SPREAD, SYNCHRONIZE, WAIT, Op

H200 = gpus()["h200-sxm-141gb"]
BYTES_PER_S = H200.memory_bytes_per_s or 0.0


def test_a_sum_moves_two_and_one() -> None:
    op = Op("add", read_bytes=2 * 10**9, written_bytes=10**9)
    assert op_seconds(op, H200) == pytest.approx(3e9 / (BYTES_PER_S * STREAMING) + START_S)


def test_layouts_cost() -> None:
    op = Op("mul", read_bytes=10**9, written_bytes=10**9)
    even, spread, crossed = (op_seconds(op._replace(layout=how), H200) for how in ("", SPREAD, CROSSED))
    assert (spread - START_S) / (even - START_S) == pytest.approx(STREAMING / BANDWIDTH[SPREAD])
    assert crossed > 2 * spread


def test_tables_are_read_where_they_are_looked_up() -> None:
    # a table of 128,256 rows of 8 KiB, of which 2,048 are taken
    op = Op("embedding", read_bytes=128256 * 8192 + 2048 * 8, written_bytes=2048 * 8192)
    assert moved_bytes(op) == 2 * 2048 * 8192


def test_a_slice_goes_back_into_zeros() -> None:
    assert moved_bytes(Op("slice_backward", read_bytes=10, written_bytes=40)) == 40 + 2 * 10


def test_the_loss_reads_one_number_a_row() -> None:
    assert moved_bytes(Op("nll_loss_forward", read_bytes=10**9, written_bytes=8)) == 8
    assert moved_bytes(Op("nll_loss_backward", read_bytes=10**9, written_bytes=10**9)) == 10**9


def test_adam_on_lists_moves_twenty_times_the_weights() -> None:
    """torch/optim/adam.py, `_multi_tensor_adam` with weight decay: mul 2, lerp 3, mul 2, addcmul 3, sqrt 2, div 2,
    add 2, addcdiv 4; the fused kernel reads four lists and writes three."""
    names = ["mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_"]
    assert sum(MOVED[f"_foreach_{name}"].read + MOVED[f"_foreach_{name}"].written for name in names) == 20
    assert sum(MOVED["_fused_adamw_"][:2]) == 7


def test_lists_are_launched_in_parts() -> None:
    # 320 blocks of 65,536 elements a launch, or 110 tensors of one list
    assert list_launches([65536 * 320], 1) == 1
    assert list_launches([65536 * 641], 1) == 3
    assert list_launches([16] * 111, 1) == 2
    assert list_launches([16] * 111, 3) == 3  # 48 tensors where there are three lists


def test_lists_reach_less() -> None:
    op = Op("_foreach_mul_", read_bytes=10**10, written_bytes=10**10, kernels=1)
    assert op_seconds(op, H200) == pytest.approx(2e10 / (BYTES_PER_S * LISTS) + START_S)


def test_the_8_bit_update_is_arithmetic() -> None:
    op = Op(
        "optimizer_update_8bit_blockwise", read_bytes=16 * 10**9, written_bytes=24 * 10**9, shapes=((8_030_261_248,),)
    )
    assert op_seconds(op, H200) == pytest.approx(0.22, rel=0.05)
    assert op_seconds(op, H200) > 5 * 40e9 / BYTES_PER_S


def test_what_launches_nothing_takes_nothing() -> None:
    for name in ("empty", "new_empty_strided", WAIT, SYNCHRONIZE, HOOK, *COLLECTIVES):
        assert op_seconds(Op(name, read_bytes=10**9, written_bytes=10**9), H200) == 0.0
    assert kind_of("all_gather") == "communication"


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_a_tensors_own_gather_moves_memory(name: str) -> None:
    """It is no collective, though some of those are called like that."""
    op = Op(name, read_bytes=10**9, written_bytes=10**9)
    assert op_seconds(op, H200) >= 2 * 10**9 / BYTES_PER_S
