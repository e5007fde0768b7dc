"""Fused attention against the rates its authors publish."""

from __future__ import annotations

import pytest

from tunecast.hardware.catalog import gpus
from tunecast.prediction.price import kind_of, op_seconds
from tunecast.prediction.price.attention import (
    CUDNN,
    FLASH_2,
    FLASH_2_AT_HALF_RATE,
    FLASH_2_ON_CDNA,
    FLASH_2_ON_HOPPER,
    START_S,
    kernel_of,
)
from tunecast.prediction.price.rates import rates_of
from tunecast.tape.op import Op

A100, H100 = gpus()["a100-sxm-80gb"], gpus()["h100-sxm-80gb"]
TOKENS = 16384
PUBLISHED = {  # causal, heads of 128, 16,384 tokens a batch, hidden 2,048: TFLOP/s at 512, 1k, 2k, 4k, 8k, 16k
    ("a100-sxm-80gb", "flash_attn::fwd", "flash_attn::bwd"): (99, 133, 155, 173, 182, 189),
    ("h100-sxm-80gb", "flash_attn::fwd", "flash_attn::bwd"): (163, 221, 265, 294, 308, 328),
}
FORWARD = {
    ("h100-sxm-80gb", "_scaled_dot_product_cudnn_attention"): (315, 410, 484, 518, 529, 539),
    ("h100-sxm-80gb", "flash_attn_3::fwd"): (292, 423, 521, 579, 602, 616),
}


def attention(name: str, length: int, width: int = 128, backward: bool = False) -> Op:
    batch, heads = TOKENS // length, 2048 // width
    flops = 4 * batch * heads * length * length * width
    shape = (batch, heads, length, width)
    if "::" in name:
        shape = (batch, length, heads, width)
    return Op(name, flops=flops * 5 // 2 if backward else flops, dtype="bfloat16", shapes=(shape, shape, shape))


def rate(ops: list[Op], card: str) -> float:
    """Causal: half of the FLOPs count."""
    return sum(op.flops for op in ops) / 2 / sum(op_seconds(op, gpus()[card]) - START_S for op in ops) / 1e12


@pytest.mark.parametrize("key", PUBLISHED, ids=str)
def test_forward_and_backward_as_published(key: tuple[str, str, str]) -> None:
    card, forward, backward = key
    for power, published in enumerate(PUBLISHED[key]):
        length = 512 << power
        found = rate([attention(forward, length), attention(backward, length, backward=True)], card)
        assert found == pytest.approx(published, rel=0.06), length


@pytest.mark.parametrize("key", FORWARD, ids=str)
def test_forward_as_published(key: tuple[str, str]) -> None:
    card, name = key
    for power, published in enumerate(FORWARD[key]):
        length = 512 << power
        assert rate([attention(name, length)], card) == pytest.approx(published, rel=0.13), length


def test_the_kernel_follows_name_and_card() -> None:
    a100, h100 = rates_of(A100), rates_of(H100)
    assert kernel_of("_scaled_dot_product_cudnn_attention", h100) is CUDNN
    assert kernel_of("_scaled_dot_product_flash_attention", a100) is FLASH_2
    assert kernel_of("_scaled_dot_product_flash_attention", h100) is FLASH_2_ON_HOPPER


def test_packed_rows_do_not_grow_with_their_length() -> None:
    """Flex attention keeps samples apart: twice the row is twice the work, not four times."""
    short, long = (op_seconds(attention("flex_attention", n), A100) - START_S for n in (4096, 8192))
    assert long == pytest.approx(short * (8192 / 4096) * (4096 / 8192), rel=0.1)  # as many tokens in all


def test_heads_of_96_take_the_tiles_of_128() -> None:
    name = "_scaled_dot_product_cudnn_attention"
    narrow = Op(name, flops=96 * 10**9, dtype="bfloat16", shapes=((4, 32, 1024, 96),))
    wide = Op(name, flops=128 * 10**9, dtype="bfloat16", shapes=((4, 32, 1024, 128),))
    assert op_seconds(narrow, H100) == pytest.approx(op_seconds(wide, H100))


def test_names_of_attention() -> None:
    assert kind_of("flash_attn::fwd") == kind_of("_scaled_dot_product_efficient_attention_backward") == "attention"
    assert kind_of("flash_attn::rotary") == kind_of("flash_attn::cross_entropy_fwd") == "moving"


def test_an_mi300x_is_no_hopper_though_its_number_begins_with_nine() -> None:
    mi300x = rates_of(gpus()["mi300x"])
    assert kernel_of("_scaled_dot_product_flash_attention", mi300x) is FLASH_2_ON_CDNA
    for name, published in (("flash_attn::fwd", 355), ("flash_attn::bwd", 205)):
        op = attention(name, 16384, backward=name.endswith("bwd"))
        assert rate([op], "mi300x") == pytest.approx(published, rel=0.06)


def test_where_sums_halve_the_products_attention_reaches_them() -> None:
    assert kernel_of("flash_attn::fwd", rates_of(gpus()["rtx-4090"])) is FLASH_2_AT_HALF_RATE
    assert kernel_of("flash_attn::fwd", rates_of(gpus()["l40s"])) is FLASH_2
    assert rate([attention("flash_attn::fwd", 16384)], "rtx-4090") == pytest.approx(162, rel=0.06)
