"""What joins the cards of a job, on paper."""

from __future__ import annotations

import pytest

from tunecast.door.predict import predict
from tunecast.errors import UsageError
from tunecast.hardware.catalog import known_gpu
from tunecast.hardware.cluster import Cluster, RankGroup, cards_of, cluster_of, mesh_of
from tunecast.hardware.links import links
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.job.parallel import Parallel
from tunecast.job.sections import Hardware


def job(gpu: str = "h100-sxm-80gb", gpus: int = 8, nodes: int = 1, *, link=None, gbps=None, **parallel) -> Job:
    hardware = Hardware(gpu=gpu, gpus=gpus, nodes=nodes, interconnect=link, inter_node_gbps=gbps)
    return Job(model="llama-3.1-8b", hardware=hardware, parallel=Parallel(**parallel))


def cluster(gpu: str = "h100-sxm-80gb", *rest, **more) -> Cluster:
    return cluster_of(job(gpu, *rest, **more), known_gpu(gpu))


def test_the_mesh_has_the_dimensions_that_talk_most_inside():
    mesh = mesh_of(job(nodes=4, tensor=4, pipeline=2, data="fsdp"))
    assert mesh == (("tensor", 4), ("pipeline", 2), ("shard", 4))
    assert mesh_of(job()) == (("data", 8),)
    assert mesh_of(job(gpus=1)) == ()


def test_hybrid_shards_stay_in_a_machine():
    assert mesh_of(job(nodes=4, data="hsdp")) == (("shard", 8), ("replicate", 4))
    assert mesh_of(job(nodes=4, data="hsdp", tensor=2)) == (("tensor", 2), ("shard", 4), ("replicate", 4))


def test_copies_of_the_weights_as_many_as_the_job_says():
    assert mesh_of(job(data="hsdp", replicate=2)) == (("shard", 4), ("replicate", 2))
    assert mesh_of(job(nodes=4, data="hsdp", replicate=2)) == (("shard", 16), ("replicate", 2))
    assert mesh_of(job(nodes=4, data="hsdp", replicate=4)) == mesh_of(job(nodes=4, data="hsdp"))
    assert mesh_of(job(data="hsdp", tensor=2, replicate=2)) == (("tensor", 2), ("shard", 2), ("replicate", 2))
    # 16 cards of two machines share a copy; the other copy's part of a card is two machines away
    found = cluster(nodes=4, data="hsdp", replicate=2)
    assert found.group("shard") == RankGroup(16, 8) and found.group("replicate") == RankGroup(2, 1)


def test_experts_take_their_ranks_from_the_data():
    found = cluster(nodes=2, expert=8, data="fsdp")
    assert found.mesh == (("expert", 8), ("shard", 2))
    assert found.group("shard") == RankGroup(16, 8)
    assert found.group("expert") == RankGroup(8, 8)


def test_ranks_with_the_same_experts_are_a_machine_apart():
    # 8 machines of 8: the experts fill a machine, so who shares an expert is one card of each
    assert cluster(nodes=8, expert=8, data="fsdp").group("shard", 8) == RankGroup(8, 1)
    assert cluster(nodes=8, expert=4, data="fsdp").group("shard", 16) == RankGroup(16, 2)
    assert cluster(nodes=8, expert=8, data="hsdp").group("shard", 1) == RankGroup(1, 1)


def test_the_cards_of_a_device_map_are_one_rank():
    assert mesh_of(job(gpus=4, layers=4)) == ()
    assert mesh_of(job(gpus=4, layers=2)) == (("data", 2),)


def test_a_group_spans_machines_when_what_is_inside_of_it_fills_one():
    # 4 machines of 8: tensor 4 beside each other, so both pipeline stages fit, and every shard is elsewhere
    found = cluster(nodes=4, tensor=4, pipeline=2, data="fsdp")
    assert found.group("tensor") == RankGroup(4, 4)
    assert found.group("pipeline") == RankGroup(2, 2)
    assert found.group("shard") == RankGroup(4, 1)
    assert found.group("shard").nodes == 4
    assert found.group("") == RankGroup(32, 8)
    assert found.group("context") == RankGroup(1, 1)


def test_a_tape_that_knows_its_groups_better_is_believed():
    assert cluster(nodes=2).group("", 4) == RankGroup(4, 4)
    assert cluster(nodes=2).group("expert", 16) == RankGroup(16, 8)


def test_ranks_that_share_a_sequence_share_weights():
    # tensor 4 x context 2 fill a machine; the weights' shards are on both halves of it, and on every machine
    found = cluster(nodes=4, tensor=4, context=2, data="fsdp")
    assert found.group("shard") == RankGroup(4, 1)
    assert found.group("shard", 8) == RankGroup(8, 2)
    assert found.group("shard", 2) == RankGroup(2, 1)


@pytest.mark.parametrize(
    ("gpu", "gpus", "link"),
    [
        ("h100-sxm-80gb", 8, "nvlink4"),
        ("a100-sxm-40gb", 8, "nvlink3"),
        ("a100-pcie-80gb", 2, "nvlink3-bridge"),
        ("a100-pcie-80gb", 4, "pcie4-x16"),
        ("l40s", 4, "pcie4-x16"),
        ("rtx-4090", 2, "host-pcie4-x16"),
        ("rtx-3090", 4, "host-pcie4-x16"),
        ("mi325x", 8, "xgmi-mi300x"),
    ],
)
def test_a_card_uses_its_own_link_as_far_as_it_reaches(gpu, gpus, link):
    found = cluster(gpu, gpus)
    assert found.inside.name == link
    assert len(found.assumptions) == 1
    assert "hardware.interconnect" in found.assumptions[0]


def test_a_rack_of_trays_is_one_domain():
    assert cluster("gb200-186gb", 4, 18).gpus_per_node == 72
    two = cluster("gb200-186gb", 4, 36)
    assert (two.gpus_per_node, two.nodes) == (72, 2)
    assert two.group("data") == RankGroup(144, 72)


def test_a_switch_ends_with_its_machine():
    assert cluster("h100-sxm-80gb", 4, 2).gpus_per_node == 4


def test_what_the_job_says_is_taken():
    found = cluster("l40s", 8, 2, link="pcie5-x16", gbps=400)
    assert found.inside is links()["pcie5-x16"]
    assert found.between.peak_bytes_per_s == 50e9
    assert found.between.bytes_per_s == pytest.approx(0.9 * 50e9)
    assert len(found.assumptions) == 1  # how much of the rate is reached


def test_what_nobody_says_is_said():
    said = cluster(nodes=2).assumptions
    assert any("400 Gb/s per GPU over infiniband-ndr" in text and "hardware.inter_node_gbps" in text for text in said)
    home = cluster("rtx-4090", 2, 2)
    assert home.between.peak_bytes_per_s == 10e9 / 8 / 2
    assert cluster("l4", 8, 2).between.peak_bytes_per_s == 100e9 / 8 / 8


def test_an_unknown_link_is_told_with_the_nearest():
    with pytest.raises(UsageError, match="nearest: nvlink4") as told:
        cluster(link="nvlink-4")
    assert told.value.field == "hardware.interconnect"
    with pytest.raises(UsageError):
        cluster(link="infiniband-ndr")  # between machines, not inside one


def test_a_script_has_cards_and_no_mesh_we_know():
    found = cards_of(known_gpu("h100-sxm-80gb"), 8, 2)
    assert found.ranks == 16
    assert found.group("shard", 16) == found.group("") == RankGroup(16, 8)
    assert found.group("", 4) == RankGroup(4, 4)


def test_more_cards_than_a_board_joins_are_told_to_be_machines() -> None:
    """16 H100 SXM are two machines; four A100 PCIe with bridges, and 16 A100 SXM of one switch, are one."""
    found = cluster("h100-sxm-80gb", 16, 1)
    assert found.inside is links()["pcie5-x16"]
    assert "hardware.nodes: 2 with hardware.gpus: 8" in found.warnings[0]
    assert cluster("h100-sxm-80gb", 8, 2).warnings == ()
    assert cluster("h100-sxm-80gb", 16, 1, link="nvlink4").warnings == ()
    assert cluster("a100-pcie-80gb", 4, 1).warnings == cluster("a100-sxm-80gb", 16, 1).warnings == ()


@pytest.mark.parametrize("stack", ["transformers", "automodel", "torchtitan"])
def test_two_copies_on_a_machine_are_as_two_machines(stack):
    """The same program: 4 cards share a copy of the weights."""
    common = {"model": "llama-3.2-1b", "stack": stack, "seq_len": 128, "micro_batch": 1, "autocast": None}
    hardware = {"gpu": "h100-sxm-80gb"}
    apart = {"hardware": hardware | {"gpus": 4, "nodes": 2}, "parallel": {"data": "hsdp"}}
    together = {"hardware": hardware | {"gpus": 8}, "parallel": {"data": "hsdp", "replicate": 2}}
    two, one = (predict(job_from_dict({**common, **where})) for where in (apart, together))
    assert one.memory.allocated_bytes == two.memory.allocated_bytes
    assert one.time.step_s < two.time.step_s, "links inside a machine are faster"
