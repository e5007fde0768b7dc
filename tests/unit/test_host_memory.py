"""The host's memory of a machine with several ranks, on paper: one weight of a million numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job import Job, job_from_dict
from tunecast.predict.checkpoint import Parameter
from tunecast.predict.host_memory import Ranks, assumption, machine_bytes, waiting_bytes

M = 1_000_000
WEIGHT = (Parameter("weight", (1000, 1000), "float32", True),)
ONE = Ranks(process_bytes=10 * M, training_bytes=20 * M, loading_bytes=4 * M, saving_bytes=4 * M, resuming_bytes=8 * M)


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


def test_what_an_offloaded_optimizer_keeps_on_the_host() -> None:
    """Adam: masters 4, two moments 8, gradients 4, of stage 3 also those of the cards, 2; parameters 2 more."""
    assert sum(waiting_bytes(spread("zero2", "optimizer"), WEIGHT).values()) == pytest.approx(16 * M, rel=1e-5)
    assert sum(waiting_bytes(spread("zero3", "optimizer"), WEIGHT).values()) == pytest.approx(18 * M, rel=1e-5)
    assert sum(waiting_bytes(spread("zero3", "parameters"), WEIGHT).values()) == pytest.approx(20 * M, rel=1e-5)
    assert sum(waiting_bytes(spread("fsdp", "parameters"), WEIGHT).values()) == pytest.approx(16 * M, rel=1e-5)
    assert waiting_bytes(spread("zero3"), WEIGHT) == {}


@pytest.mark.parametrize(("nodes", "share"), [(1, 1.0), (2, 0.5), (4, 0.25)])
def test_a_machine_holds_its_share_of_what_waits(nodes: int, share: float) -> None:
    small = Ranks(0, 0, 0, 0, 0)
    with_it = machine_bytes(spread("zero3", "optimizer", nodes=nodes), WEIGHT, small)
    # and, when a run is resumed, its share of masters and moments once more
    assert with_it == pytest.approx(share * (18 + 12) * M, rel=1e-5)


def test_machines_that_replicate_each_other_hold_all() -> None:
    small = Ranks(0, 0, 0, 0, 0)
    one, two = (machine_bytes(spread("hsdp", "parameters", nodes=nodes), WEIGHT, small) for nodes in (1, 2))
    assert one == two == pytest.approx(16 * M, rel=1e-5)


def test_what_is_taken_for_granted_is_said() -> None:
    assert assumption(spread("ddp", gpus=1), WEIGHT) is None
    assert "cpu_ram_efficient_loading" in (assumption(spread("fsdp"), WEIGHT) or "")
    assert "masters" in (assumption(spread("zero3", "optimizer"), WEIGHT) or "")
