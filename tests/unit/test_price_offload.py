"""Copies to the host and an optimizer there, against one H200's host (benchmarks/data/host_copies.jsonl)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunecast.hardware import gpu
from tunecast.prediction.price import OFFLOAD, kind_of
from tunecast.prediction.price.offload import OFFLOADED, ON_DRIVES, copy_seconds, host_link, offload_seconds
from tunecast.prediction.price.rates import rates_of
from tunecast.tape.op import FROM_HOST, FROM_NVME, HOST_LOOP, HOST_STEP, TO_HOST, TO_NVME, Op

MEASURED = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "benchmarks" / "data" / "host_copies.jsonl").read_text().splitlines()
]
H200 = host_link(gpu("h200"))


@pytest.mark.parametrize("row", [r for r in MEASURED if r["kind"].startswith("copy") and r["bytes"] > 1 << 20])
def test_copies_take_what_they_took(row) -> None:
    told = copy_seconds(row["bytes"], H200, row["kind"] == TO_HOST, row["pinned"])
    assert told == pytest.approx(row["seconds"], rel=0.05 if row["pinned"] else 0.5)


@pytest.mark.parametrize("row", [r for r in MEASURED if r["kind"] == HOST_STEP and not r.get("foreach")])
def test_an_optimizer_on_the_host_takes_what_it_took(row) -> None:
    weights = row["parameters"]
    name = HOST_STEP if row.get("fused") else HOST_LOOP
    told = offload_seconds(Op(name, read_bytes=16 * weights, written_bytes=12 * weights), H200)
    assert told == pytest.approx(row["seconds"], rel=0.1)


def test_ranks_of_a_machine_share_its_memory_but_not_grace_s() -> None:
    step = Op(HOST_STEP, read_bytes=16 << 30, written_bytes=12 << 30)
    assert offload_seconds(step, H200, 8) == pytest.approx(8 * offload_seconds(step, H200))
    grace = host_link(gpu("gb200-186gb"))
    assert offload_seconds(step, grace, 4) == offload_seconds(step, grace)


def test_a_newer_slot_is_faster_and_none_known_is_taken_for_pcie_4() -> None:
    seconds = [copy_seconds(1 << 30, host_link(gpu(name))) for name in ("v100-sxm-32gb", "a100-sxm-80gb", "h200")]
    assert seconds == sorted(seconds, reverse=True)
    assert host_link(gpu("a100-sxm-80gb")).from_host_bytes_per_s == pytest.approx(25e9, rel=0.01)


def test_every_such_operation_has_this_price() -> None:
    assert {kind_of(name) for name in OFFLOADED} == {OFFLOAD}
    assert rates_of(gpu("h200")).host == H200
    assert offload_seconds(Op(FROM_HOST, written_bytes=55_500_000_000), H200) == pytest.approx(1.0, rel=0.01)


def test_drives_are_read_faster_than_written_and_shared_by_a_machine_s_ranks() -> None:
    """6.5 and 3.5 GB/s; or at the rate a job says, both ways."""
    read, written = Op(FROM_NVME, written_bytes=6_500_000_000), Op(TO_NVME, read_bytes=3_500_000_000)
    assert {read.name, written.name} == ON_DRIVES
    assert offload_seconds(read, H200) == offload_seconds(written, H200) == 1.0
    assert offload_seconds(read, H200, 8) == 8.0
    assert offload_seconds(read, H200, 8, nvme_bytes_per_s=26e9) == 2.0
    assert offload_seconds(written, H200, nvme_bytes_per_s=7e9) == 0.5
