"""Seconds of collectives: on paper, and beside published runs of nccl-tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from tunecast.hardware.catalog import known_gpu
from tunecast.hardware.cluster import Cluster, cluster_of
from tunecast.hardware.links import Link, links, network
from tunecast.job.job import Job
from tunecast.job.sections import Hardware
from tunecast.prediction.price.collectives import LL, RAMP_S, SIMPLE, collective_seconds, inside_rate
from tunecast.tape.op import COLLECTIVES, Op

US, KIB, GIB = 1e-6, 2**10, 2**30


def link(kind: str, gb_per_s: float, latency_us: float, **more) -> Link:
    return Link("paper", kind, gb_per_s * 1e9, latency_us * US, "paper", date(2026, 1, 1), **more)


def paper(ranks: int = 4, per_node: int = 4, between: Link | None = None, **more) -> Cluster:
    inside = link("pcie", 10, 1, **more)
    return Cluster(per_node, -(-ranks // per_node), inside, between or link("network", 1, 3), (("data", ranks),))


def seconds(name: str, nbytes: int, cluster: Cluster, group: str = "data") -> float:
    return collective_seconds(Op(name, read_bytes=nbytes, written_bytes=nbytes, group=group), cluster)


def of(gpu: str, gpus: int = 8, nodes: int = 1) -> Cluster:
    job = Job(model="llama-3.1-8b", hardware=Hardware(gpu=gpu, gpus=gpus, nodes=nodes))
    return cluster_of(job, known_gpu(gpu))


def test_a_large_gather_is_a_ring():
    # 3 steps of 4 GB/4 at 10 GB/s = 0.3 s; before: 8.4 us and the ramp, and 3 hops of 1 + 4.7 us
    expected = 0.3 + 8.4 * US + RAMP_S + 3 * 5.7 * US
    assert seconds("all_gather", 4 * 10**9, paper()) == pytest.approx(expected)
    assert seconds("reduce_scatter", 4 * 10**9, paper()) == pytest.approx(expected)


def test_a_small_one_takes_the_fast_protocol():
    # LL: 6.6 us, 3 hops of 1 us, 3 x 100 B at half of 10 GB/s
    assert seconds("all_gather", 400, paper()) == pytest.approx(9.6 * US + 300 / 5e9)


def test_a_large_reduction_is_two_gathers_less_one_start():
    twice = 2 * seconds("all_gather", 4 * 10**9, paper())
    assert seconds("all_reduce", 4 * 10**9, paper()) == pytest.approx(twice - SIMPLE.ring_base)


def test_a_ring_over_machines_uses_all_their_adapters():
    # 2 machines of 4: 7 steps of 1 GB at min(10, 4 adapters x 1) GB/s; one step crosses
    found = seconds("all_gather", 8 * 10**9, paper(8, 4))
    hops = 6 * 5.7 * US + (2 * 3 + 11.3) * US
    assert found == pytest.approx(7 / 4 + SIMPLE.ring_base + hops)
    # one card a machine: its adapter alone, no hop stays inside
    assert seconds("all_gather", 8 * 10**9, paper(8, 1)) == pytest.approx(7 + SIMPLE.ring_base + 7 * 17.3 * US)


def test_the_switch_moves_n_plus_1_shares():
    reducing = paper(8, 8, reduce_bytes_per_s=9e9)
    # 8 GB x 9/8 at 9 GB/s, against 14/8 at 10 GB/s of the ring
    assert seconds("all_reduce", 8 * 10**9, reducing) == pytest.approx(1 + 25 * US + RAMP_S)
    assert seconds("all_gather", 8 * 10**9, reducing) == seconds("all_gather", 8 * 10**9, paper(8, 8))


def test_all_to_all_leaves_by_ones_own_adapter():
    # of 8 GB, 4/8 leave at 1 GB/s while 3/8 stay at 10
    found = seconds("all_to_all", 8 * 10**9, paper(8, 4))
    assert found == pytest.approx(4 + SIMPLE.ring_base + (2 * 3 + 11.3) * US)


def test_neighbours_on_two_machines_are_the_slow_ones():
    assert seconds("send", 10**9, paper(2, 2)) == pytest.approx(0.1 + SIMPLE.ring_base + 5.7 * US)
    assert seconds("recv", 10**9, paper(2, 1)) == pytest.approx(1 + SIMPLE.ring_base + 17.3 * US)


def test_pairs_of_a_mesh_and_of_a_bus():
    assert inside_rate(links()["xgmi-mi300x"], 2) == 47.7e9
    assert inside_rate(links()["xgmi-mi300x"], 4) == pytest.approx(3 * 47.7e9)
    assert inside_rate(links()["xgmi-mi300x"], 8) == 312.9e9
    assert inside_rate(links()["pcie5-x16"], 2) == 54e9
    assert inside_rate(links()["pcie5-x16"], 8) == 40e9


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_alone_or_of_nothing_it_is_free(name):
    assert seconds(name, 10**6, paper(1)) == 0
    assert seconds(name, 10**6, paper(), "tensor") == 0
    assert seconds(name, 0, paper()) == 0
    assert seconds(name, 10**6, paper()) > 0


def test_a_group_of_a_script_says_its_ranks():
    op = Op("all_gather", read_bytes=10**9, written_bytes=4 * 10**9, shapes=((1,), (4,)))
    assert collective_seconds(op, paper(8, 4)) == seconds("all_gather", 4 * 10**9, paper(4, 4))


def test_an_operation_without_a_price_is_not_free():
    with pytest.raises(ValueError, match="no price for scan"):
        seconds("scan", 1, paper())


def test_ll_needs_no_ramp():
    assert LL.ring_base < SIMPLE.ring_base


# ml-engineering, network/README.md and network/benchmarks/README.md (2026-10): busbw in GB/s of an all_reduce of 32 KiB
# and of twice as much each time, up to 16 GiB
H200 = (3.15, 6.16, 12.46, 24.68, 48.15, 74.57, 96.26, 145.14, 196.56, 255.9,
        301.25, 368.86, 414.54, 441.87, 456.23, 465.91, 471.06, 474.13, 478.24, 482.25)  # fmt: skip
B200 = (2.17, 3.95, 8.07, 15.57, 29.07, 58.54, 104.27, 127.85, 195.6, 294.36,
        362.0, 419.98, 591.14, 658.63, 703.38, 721.37, 739.47, 749.12, 832.48, 838.97)  # fmt: skip
FOUR_B200 = (0.64, 1.26, 2.33, 3.97, 6.97, 12.56, 20.82, 31.56, 49.73, 72.03,
             142.5, 198.07, 260.25, 282.6, 310.96, 366.15, 371.24, 374.66, 376.05, 376.6)  # fmt: skip
EFA = replace(of("b200-sxm-180gb", 8, 4), between=network("efa-v4", 400))


@pytest.mark.parametrize(
    ("cluster", "busbw", "first", "within"),
    [
        (of("h200-sxm-141gb"), H200, 0, 0.24),
        (of("h200-sxm-141gb"), H200, 11, 0.08),
        (of("b200-sxm-180gb"), B200, 0, 0.47),
        (of("b200-sxm-180gb"), B200, 12, 0.121),
        (EFA, FOUR_B200, 0, 0.44),
        (EFA, FOUR_B200, 11, 0.08),
    ],
    ids=["h200", "h200 large", "b200", "b200 large", "4 b200", "4 b200 large"],
)
def test_published_runs(cluster, busbw, first, within):
    n = cluster.ranks
    for power, measured in list(enumerate(busbw))[first:]:
        nbytes = 32 * KIB << power
        measured_s = nbytes * 2 * (n - 1) / n / (measured * 1e9)
        assert seconds("all_reduce", nbytes, cluster) == pytest.approx(measured_s, rel=within), nbytes


@pytest.mark.parametrize(
    ("name", "busbw", "factor"), [("all_gather", 361.4, 7 / 8), ("reduce_scatter", 362.9, 7 / 8)]
)  # the same source, 16 GiB on 8 H200
def test_gathers_do_not_reduce_in_the_switch(name, busbw, factor):
    measured_s = 16 * GIB * factor / (busbw * 1e9)
    assert seconds(name, 16 * GIB, of("h200-sxm-141gb")) == pytest.approx(measured_s, rel=0.02)


@pytest.mark.parametrize(("gpus", "us", "gb_per_s"), [(2, 46, 193), (4, 54, 218), (8, 79, 227)])
def test_a100_as_fitted_to_nccl_tests(gpus, us, gb_per_s):
    for nbytes in (2**28, 2**30, 2**32):
        measured_s = us * US + nbytes * 2 * (gpus - 1) / gpus / (gb_per_s * 1e9)
        assert seconds("all_reduce", nbytes, of("a100-sxm-80gb", gpus)) == pytest.approx(measured_s, rel=0.08)
