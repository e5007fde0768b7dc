"""The host's memory of a machine with several ranks, on paper: one weight of a million numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job import Job, job_from_dict
from tunecast.prediction.outside.checkpoint import Parameter
from tunecast.prediction.outside.host_memory import (
    RankMemory,
    assumption,
    buffers_bytes,
    drives_assumption,
    machine_bytes,
    machine_nvme_bytes,
    nvme_bytes,
    waiting_bytes,
)

M = 1_000_000
WEIGHT = (Parameter("weight", (1000, 1000), "float32", True),)
ONE = RankMemory(
    process_bytes=10 * M, training_bytes=20 * M, loading_bytes=4 * M, saving_bytes=4 * M, resuming_bytes=8 * M
)


def spread(data: str, offload: str = "none", gpus: int = 8, nodes: int = 1, **more: Any) -> Job:
    return job_from_dict(
        {
            "model": "llama-3.2-1b",
            "method": "full",
            "seq_len": 512,
            "micro_batch": 1,
            "weights_dtype": "float32",
            "autocast": "bfloat16",
            "optimizer": "adamw_torch",
            "hardware": {"gpu": "h100-sxm-80gb", "gpus": gpus, "nodes": nodes},
            "parallel": {"data": data, "offload": offload, **more},
        }
    )


def test_the_first_rank_saves_alone_and_every_rank_is_a_process() -> None:
    small = ONE._replace(resuming_bytes=0, loading_bytes=0)
    assert machine_bytes(spread("ddp"), WEIGHT, small) == 8 * 20 * M + 4 * M


def test_each_rank_of_ddp_reads_the_optimizer_and_the_first_of_fsdp() -> None:
    large = ONE._replace(resuming_bytes=800 * M)
    assert machine_bytes(spread("ddp"), WEIGHT, large) == 8 * (10 + 800) * M
    assert machine_bytes(spread("fsdp"), WEIGHT, large) == (8 * 10 + 800) * M


def test_every_rank_loads_the_whole_model_but_under_zero_3() -> None:
    large = ONE._replace(loading_bytes=400 * M)
    assert machine_bytes(spread("fsdp"), WEIGHT, large) == 8 * (10 + 400) * M
    assert machine_bytes(spread("zero2"), WEIGHT, large) == 8 * (10 + 400) * M
    assert machine_bytes(spread("zero3"), WEIGHT, large) == (8 * 20 + 4) * M


def test_the_first_rank_alone_loads_where_others_are_sent_their_parts() -> None:
    large = ONE._replace(loading_bytes=400 * M, others_loading_bytes=0)
    assert machine_bytes(spread("fsdp"), WEIGHT, large) == (8 * 10 + 400) * M
    zeros = large._replace(others_loading_bytes=600 * M)
    assert machine_bytes(spread("fsdp"), WEIGHT, zeros) == (8 * 10 + 400 + 7 * 600) * M


def test_every_rank_saves_and_reads_its_part() -> None:
    parts = spread("fsdp", state_dict_type="sharded")
    large = ONE._replace(loading_bytes=0, saving_bytes=30 * M, resuming_bytes=0)
    assert machine_bytes(spread("fsdp"), WEIGHT, large) == (8 * 20 + 30) * M
    assert machine_bytes(parts, WEIGHT, large) == 8 * (20 + 30) * M
    reads = large._replace(saving_bytes=0, resuming_bytes=50 * M)
    assert machine_bytes(parts, WEIGHT, reads) == 8 * (10 + 50) * M


def test_what_an_offloaded_optimizer_keeps_on_the_host() -> None:
    """Adam: masters 4, two moments 8, gradients 4, of stage 3 also those of the cards, 2; parameters 2 more."""
    assert sum(waiting_bytes(spread("zero2", "optimizer"), WEIGHT).values()) == pytest.approx(16 * M, rel=1e-5)
    assert sum(waiting_bytes(spread("zero3", "optimizer"), WEIGHT).values()) == pytest.approx(18 * M, rel=1e-5)
    assert sum(waiting_bytes(spread("zero3", "parameters"), WEIGHT).values()) == pytest.approx(20 * M, rel=1e-5)
    assert sum(waiting_bytes(spread("fsdp", "parameters"), WEIGHT).values()) == pytest.approx(16 * M, rel=1e-5)
    assert waiting_bytes(spread("zero3"), WEIGHT) == {}


@pytest.mark.parametrize(("nodes", "share"), [(1, 1.0), (2, 0.5), (4, 0.25)])
def test_a_machine_holds_its_share_of_what_waits(nodes: int, share: float) -> None:
    small = RankMemory(0, 0, 0, 0, 0)
    with_it = machine_bytes(spread("zero3", "optimizer", nodes=nodes), WEIGHT, small)
    # and, when a run is resumed, its share of masters and moments once more
    assert with_it == pytest.approx(share * (18 + 12) * M, rel=1e-5)


def test_machines_that_replicate_each_other_hold_all() -> None:
    small = RankMemory(0, 0, 0, 0, 0)
    one, two = (machine_bytes(spread("hsdp", "parameters", nodes=nodes), WEIGHT, small) for nodes in (1, 2))
    assert one == two == pytest.approx(16 * M, rel=1e-5)


def test_what_is_taken_for_granted_is_said() -> None:
    assert assumption(spread("ddp", gpus=1), WEIGHT) is None
    assert "cpu_ram_efficient_loading" in (assumption(spread("fsdp"), WEIGHT) or "")
    assert "saves none" in (assumption(spread("fsdp", cpu_ram_efficient_loading=True), WEIGHT) or "")
    sent = spread("fsdp", cpu_ram_efficient_loading=True, load_on_rank_0=True)
    assert "rank 0 alone loads" in (assumption(sent, WEIGHT) or "")
    assert "masters" in (assumption(spread("zero3", "optimizer"), WEIGHT) or "")


# ---------------------------------------------------------------------------------------------------------- drives

LARGE = (Parameter("large", (2000, M), "float32", True), Parameter("frozen", (400, M), "bfloat16", False))


def on_drives(offload: str, **more: Any) -> Job:
    return spread("zero3", offload, offload_device="nvme", **more)


def test_what_lies_on_drives() -> None:
    """Masters 4, two moments 8, gradients 4 bytes; with parameters, 2 of those that have no room in host memory and of
    the frozen ones."""
    one = on_drives("optimizer", gpus=1)
    assert sum(nvme_bytes(one, LARGE).values()) == pytest.approx(16 * 2000 * M, rel=1e-5)
    all_of_it = on_drives("parameters", gpus=1)
    assert sum(nvme_bytes(all_of_it, LARGE).values()) == pytest.approx((16 * 2000 + 2 * 2400) * M, rel=1e-5)
    # 250 million a rank have room in max_in_cpu, a billion
    shared = on_drives("parameters", gpus=8)
    assert sum(nvme_bytes(shared, LARGE).values()) == pytest.approx((16 * 2000 + 2 * 400) * M, rel=1e-5)
    assert waiting_bytes(shared, LARGE) == {"gradients": 2 * 2000 * M, "weights": 2 * 2000 * M}
    assert nvme_bytes(spread("zero3", "parameters"), LARGE) == {}


def test_buffers_stand_in_host_memory() -> None:
    """4 of float32, as large as the largest sub-group: here all 2,000 million, or a rank's 250. With parameters 5 of 2
    bytes, of 100 million or the largest part; and, where weights leave, whole ones once more."""
    assert buffers_bytes(on_drives("optimizer", gpus=1), LARGE) == 4 * 4 * 2000 * M
    assert buffers_bytes(on_drives("optimizer", gpus=8), LARGE) == 4 * 4 * 250 * M
    assert buffers_bytes(on_drives("parameters", gpus=8), LARGE) == 4 * 4 * 250 * M + 5 * 2 * 250 * M
    assert buffers_bytes(on_drives("parameters", gpus=1), LARGE) == (4 * 4 + 5 * 2 + 2) * 2000 * M
    assert buffers_bytes(spread("zero3", "parameters"), LARGE) == 0


def test_a_machine_has_its_ranks_buffers_and_its_share_of_the_rest() -> None:
    """Nothing is read into memory to resume: files are copied."""
    small = RankMemory(0, 0, 0, 0, 0)
    job = on_drives("optimizer", nodes=2)
    assert machine_nvme_bytes(job, LARGE) == pytest.approx(16 * 2000 * M / 2, rel=1e-5)
    assert machine_bytes(job, LARGE, small) == 8 * 4 * 4 * 125 * M + 2 * 2000 * M // 2


def test_drives_are_told_with_their_rate() -> None:
    assert "one drive of PCIe 4" in (drives_assumption(on_drives("optimizer"), LARGE) or "")
    quick = job_from_dict(
        on_drives("optimizer").to_dict() | {"hardware": {"gpus": 8, "nvme_bytes_per_s": 25_000_000_000}}
    )
    assert "read and written at 25 GB/s" in (drives_assumption(quick, LARGE) or "")
    assert drives_assumption(spread("zero3", "optimizer"), LARGE) is None
