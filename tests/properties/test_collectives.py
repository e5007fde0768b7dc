"""Whatever the machines: more bytes take longer, and nothing outruns its wires."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunecast.hardware.cluster import Cluster
from tunecast.hardware.links import inside_names, links, network
from tunecast.prediction.price.collectives import WAYS, collective_seconds, inside_rate
from tunecast.tape.op import Op

FABRICS = sorted(name for name, link in links().items() if link.kind == "network")


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    per_node = draw(st.sampled_from([1, 2, 4, 8]))
    nodes = draw(st.sampled_from([1, 2, 3, 4, 16, 128]))
    inside = links()[draw(st.sampled_from(sorted(inside_names())))]
    between = network(draw(st.sampled_from(FABRICS)), draw(st.floats(1, 800)))
    ranks = per_node * nodes
    return Cluster(per_node, nodes, inside, between, (("data", ranks),) if ranks > 1 else ())


def seconds(name: str, nbytes: int, cluster: Cluster) -> float:
    return collective_seconds(Op(name, read_bytes=nbytes, written_bytes=nbytes, group="data"), cluster)


SIZES = st.integers(1, 2**38)
NAMES = st.sampled_from(sorted(WAYS))


@given(NAMES, clusters(), SIZES, SIZES)
def test_more_bytes_take_longer(name: str, cluster: Cluster, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert seconds(name, less, cluster) <= seconds(name, more, cluster) * (1 + 1e-12)


@given(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]), clusters(), SIZES)
def test_nothing_outruns_its_wires(name: str, cluster: Cluster, nbytes: int) -> None:
    """A rank must receive what it lacks, all of it from inside or through its machine's adapters."""
    group = cluster.group("data")
    if group.ranks < 2:
        return
    lacks = nbytes * (group.ranks - 1) / group.ranks
    wire = inside_rate(cluster.inside, group.inside) if group.inside > 1 else cluster.between.bytes_per_s
    least_s = lacks / wire
    if group.nodes > 1:
        least_s = max(least_s, nbytes * (group.nodes - 1) / group.nodes / (group.inside * cluster.between.bytes_per_s))
    assert seconds(name, nbytes, cluster) >= least_s * (1 - 1e-9)


@given(clusters(), SIZES)
def test_a_reduction_costs_no_more_than_its_two_halves(cluster: Cluster, nbytes: int) -> None:
    """And of very much not much less: the switch spares it n-3 of 2n-2 parts of the way."""
    for size in (nbytes, 2**42):
        halves = seconds("reduce_scatter", size, cluster) + seconds("all_gather", size, cluster)
        assert seconds("all_reduce", size, cluster) <= halves * (1 + 1e-9)
    assert seconds("all_reduce", 2**42, cluster) >= halves / 2


@given(NAMES, clusters(), SIZES)
def test_a_faster_network_is_never_slower(name: str, cluster: Cluster, nbytes: int) -> None:
    faster = network(cluster.between.name, 2 * cluster.between.peak_bytes_per_s * 8 / 1e9)
    quick = Cluster(cluster.gpus_per_node, cluster.nodes, cluster.inside, faster, cluster.mesh)
    assert seconds(name, nbytes, quick) <= seconds(name, nbytes, cluster) * (1 + 1e-12)
