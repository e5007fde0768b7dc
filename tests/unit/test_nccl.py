"""NCCL's own memory, on paper."""

from __future__ import annotations

import pytest

from tunecast.hardware.catalog import known_gpu
from tunecast.hardware.cluster import cluster_of
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.job.parallel import Parallel
from tunecast.job.sections import Hardware
from tunecast.prediction.memory.nccl import LIBRARY_BYTES, NONE, NcclBuffers, nccl_bytes
from tunecast.prediction.on_card import job_on_card
from tunecast.prediction.prediction import Prediction, memory_of, prediction_from_tape
from tunecast.report.run.memory import figures_text
from tunecast.report.run.on_card import run_figures
from tunecast.tape.op import Alloc, Begin, Phase, Role, Tape
from tunecast.units import MIB


def held(gpu: str = "h100-sxm-80gb", gpus: int = 8, nodes: int = 1, **parallel) -> NcclBuffers:
    job = Job(model="m", hardware=Hardware(gpu=gpu, gpus=gpus, nodes=nodes), parallel=Parallel(**parallel))
    return nccl_bytes(cluster_of(job, known_gpu(gpu)))


def test_one_rank_needs_none():
    assert held(gpus=1) == NONE
    assert held(gpus=4, layers=4) == NONE


def test_shards_need_rings():
    # 24 rings, each 10 MiB to receive into and 2 MiB to send from
    assert held(data="fsdp")[:2] == (24 * 12 * MIB, LIBRARY_BYTES + 24 * 12 * MIB)


def test_older_ones_made_rings_and_trees_at_once():
    """NVIDIA/nccl#964: 688 MiB on 4 A100; torch 2.7 came with the first NCCL that waits until it must."""
    job = Job(model="m", hardware=Hardware(gpu="a100-sxm-80gb", gpus=4), parallel=Parallel(data="fsdp"))
    cluster = cluster_of(job, known_gpu("a100-sxm-80gb"))
    older, newer = nccl_bytes(cluster, "2.6.0"), nccl_bytes(cluster, "2.7.1")
    assert (older.nbytes, newer.nbytes) == (LIBRARY_BYTES + 688 * MIB, LIBRARY_BYTES + 24 * 12 * MIB)
    assert older.low_bytes == newer.low_bytes < newer.nbytes < older.nbytes <= older.high_bytes


def test_reductions_need_the_switch_too():
    # 16 channels x 8 cards x 2 MiB
    assert held().nbytes - held(data="fsdp").nbytes == 256 * MIB
    assert held("a100-sxm-80gb").nbytes == held("a100-sxm-80gb", data="fsdp").nbytes


def test_experts_talk_to_everybody():
    """NVIDIA/nccl#1685: 8 H100 hold 3.28 GB more after the first all_to_all."""
    more = held(expert=8, data="fsdp").nbytes - held(data="fsdp").nbytes
    assert more == 32 * 7 * 12 * MIB + 512 * MIB
    assert more == pytest.approx(3.28e9, rel=0.03)


def test_through_host_memory_the_buffers_are_there():
    assert held("rtx-4090", 2).low_bytes == 0
    assert held("rtx-4090", 2).nbytes == LIBRARY_BYTES


def test_each_dimension_has_a_communicator():
    # tensor 8 inside; shard 4, one card a machine; all 32: 24 + 24 rings inside, and 2 of the network
    assert held(nodes=4, tensor=8, data="fsdp").low_bytes == 2 * 24 * 12 * MIB + 2 * 20 * MIB


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "a100-sxm-80gb", "l40s", "rtx-4090", "mi300x"])
@pytest.mark.parametrize("parallel", [{}, {"data": "fsdp"}, {"tensor": 2}, {"pipeline": 2}, {"data": "hsdp"}])
def test_the_range_holds_the_value(gpu, parallel):
    low, value, high = held(gpu, 8, 2, **parallel)
    assert 0 <= low <= value <= high
    assert value < 6e9


def test_the_older_libraries_figures_are_in_the_range():
    """NVIDIA/nccl#964: 688 MiB a communicator of 4 A100."""
    found = held("a100-sxm-80gb", 4)
    assert found.low_bytes < 688 * MIB < found.high_bytes


TAPE = Tape((Alloc(0, 100 * MIB, Role.WEIGHTS), Begin(Phase.FORWARD, 0), Alloc(1, 30 * MIB, Role.ACTIVATIONS)))


def on_card_of(**hardware):
    return job_from_dict({"model": "llama-3.2-1b", "hardware": hardware, "parallel": {"data": "fsdp"}})


def test_it_lies_on_the_card_beside_the_context():
    """8 H200: 107 MB and 24 rings more than one card, and as much less for the allocator."""
    card = known_gpu("h200-sxm-141gb")
    one = prediction_from_tape(on_card_of(gpus=1), card, TAPE)
    many = prediction_from_tape(on_card_of(gpus=8), card, TAPE)
    more = LIBRARY_BYTES + 24 * 12 * MIB
    assert "communication" not in one.memory.breakdown_bytes
    assert many.memory.breakdown_bytes["communication"] == more
    assert many.memory.device_bytes - one.memory.device_bytes == more
    assert one.capacity_bytes - many.capacity_bytes == more
    assert sum(many.memory.breakdown_bytes.values()) == many.memory.device_bytes
    low, high = many.memory.range_bytes.device
    assert low < many.memory.device_bytes < high
    assert any("NCCL's buffers take" in text for text in many.assumptions)
    assert any("nvlink4" in text for text in many.assumptions)


def test_the_report_draws_it():
    card = known_gpu("h200-sxm-141gb")
    held = job_on_card(on_card_of(gpus=8), card, TAPE)
    figures = run_figures(Prediction(None, None, held), "8 cards")
    assert figures.device_bytes == memory_of(held).device_bytes
    assert figures.others_bytes == 0
    assert "of NCCL" in figures_text(figures)
