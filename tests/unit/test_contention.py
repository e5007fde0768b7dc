"""Kernels beside collectives, by hand."""

from __future__ import annotations

import pytest

from tunecast.hardware.catalog import gpus
from tunecast.hardware.cluster import Cluster, cards_of
from tunecast.prediction.price.contention import SECOND_WAVE, SPREAD, lost, slowdown, slowed, slowest
from tunecast.prediction.price.rates import rates_of

A100, H100, MI300X = (rates_of(gpus()[name]) for name in ("a100-sxm-80gb", "h100-sxm-80gb", "mi300x"))
PRODUCTS, MOVING = ("matrix_products", "compute"), ("memory_bound", "memory")
SHARDS, TENSOR = ("shard", "communication"), ("tensor", "communication")


def cluster(card: str, machines: int = 1) -> Cluster:
    return cards_of(gpus()[card], 8, machines)


def test_a_channel_holds_a_multiprocessor() -> None:
    inside, between = cluster("a100-sxm-80gb"), cluster("a100-sxm-80gb", 2)
    assert lost("memory", A100, inside) == pytest.approx(24 / 108)
    assert lost("compute", A100, inside) == pytest.approx(24 / 108)
    assert lost("compute", A100, between) == pytest.approx(16 / 108)


def test_products_of_hopper_need_a_second_wave() -> None:
    inside = cluster("h100-sxm-80gb")
    assert lost("compute", H100, inside) == SECOND_WAVE
    assert lost("memory", H100, inside) == pytest.approx(24 / 132)
    assert lost("compute", MI300X, cluster("mi300x")) < SECOND_WAVE  # gfx942 is no compute capability of 9


def test_what_is_hidden_slows_what_hides_it() -> None:
    # 100 s of products, beside which 20 s of a gather run: they go at 0.55 of their rate for that long, and lose 9 s
    spent = {PRODUCTS: 100.0, SHARDS: 20.0}
    assert slowdown(spent, 0.0, H100, cluster("h100-sxm-80gb")) == pytest.approx(1.09)
    # of which half was waited for
    assert slowdown(spent, 10.0, H100, cluster("h100-sxm-80gb")) == pytest.approx(1.045)
    # half of the work on an A100 is as slow as the other half
    both = {PRODUCTS: 50.0, MOVING: 50.0, SHARDS: 20.0}
    assert slowdown(both, 0.0, A100, cluster("a100-sxm-80gb")) == pytest.approx(1 + 0.2 * 24 / 108)


def test_what_is_waited_for_or_done_by_copy_engines_slows_nothing() -> None:
    assert slowdown({PRODUCTS: 100.0, SHARDS: 20.0}, 20.0, H100, cluster("h100-sxm-80gb")) == 1.0
    assert slowdown({PRODUCTS: 100.0, TENSOR: 20.0}, 5.0, H100, cluster("h100-sxm-80gb")) == 1.0
    assert slowdown({SHARDS: 20.0}, 0.0, H100, cluster("h100-sxm-80gb")) == 1.0


def test_no_more_than_all_of_the_work_is_slowed() -> None:
    assert slowdown({PRODUCTS: 1.0, SHARDS: 20.0}, 0.0, H100, cluster("h100-sxm-80gb")) == pytest.approx(
        1 + SECOND_WAVE
    )


def test_the_slowest_of_many_cards_holds_the_others_up() -> None:
    """Of a normal spread the slowest of 8 is 1.42 deviations below the mean, of 512 it is 3.04."""
    for ranks, deviations in ((8, 1.42), (512, 3.04)):
        waited_for = slowest(H100, ranks)
        assert H100.flop_per_s("bfloat16") / waited_for.flop_per_s("bfloat16") == pytest.approx(
            1 + SPREAD * deviations, abs=0.001
        )
        assert waited_for.bytes_per_s == H100.bytes_per_s
    assert slowest(H100, 1) is H100
    assert slowest(A100, 512) is A100  # its power does not hold it back


def test_a_slower_card_moves_and_computes_less() -> None:
    half = slowed(H100, 2.0)
    assert half.bytes_per_s == H100.bytes_per_s / 2
    assert half.flop_per_s("float8") == H100.flop_per_s("float8") / 2
    assert half.sm_count == H100.sm_count
