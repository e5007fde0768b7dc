"""Where the driver puts segments, which decides between blocks of one size up to torch 2.11."""

import json
from pathlib import Path

import pytest

from tunecast.job import job_from_dict
from tunecast.prediction.memory.addresses import APART, Addresses
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import replay
from tunecast.records import replace
from tunecast.tape.build.job_runs import fold_job
from tunecast.tape.card import Card
from tunecast.units import MIB

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def places(*sizes: int, arena_bytes: int = 32 * MIB) -> list[int]:
    """In MiB, from where address space is taken first."""
    addresses = Addresses(ascending=False, arena_bytes=arena_bytes)
    taken = [addresses.take(size * MIB) // APART for size in sizes]
    return [(each - taken[0]) // MIB for each in taken]


def test_segments_share_an_arena_from_its_start_and_arenas_descend() -> None:
    assert places(20, 20, 2, 10, 2) == [0, -32, -12, -10, 20]


def test_the_lowest_place_that_is_large_enough_is_taken() -> None:
    assert places(20, 40, 2, 12, 24) == [0, -64, -24, -22, -96]


def test_a_segment_of_whole_arenas_leaves_nothing() -> None:
    assert places(32, 64, 2) == [0, -64, -96]


def test_without_arenas_each_lies_below_the_one_before() -> None:
    assert places(20, 2, 20, arena_bytes=0) == [0, -2, -22]


def test_ascending_ones_do_not_share() -> None:
    addresses = Addresses(ascending=True)
    first, second = addresses.take(20 * MIB), addresses.take(2 * MIB)
    assert second == first + APART * 20 * MIB


@pytest.mark.parametrize(
    "name",
    [
        "gpt2-full-b8s1024-weights=fp32",  # allocated
        "llama-3.2-1b-full-b4s2048-mixed",  # reserved
        "llama-3.1-8b-full-b1s2048-ckpt",
        "llama-3.1-8b-full-b1s2048-ckpt-optimizer=adafactor",
        "mistral-7b-lora-b2s4096-ckpt",
    ],
)
def test_runs_on_an_h200_show_arenas(name: str) -> None:
    """To the byte with them; segments that only descend miss each of these."""
    rows = map(json.loads, (DATA / "h200_runs.jsonl").read_text(encoding="utf-8").splitlines())
    row = next(row for row in rows if row["job"]["id"] == name)
    job, models = job_from_dict(row["job"]), json.loads((DATA / "h200_models.json").read_text(encoding="utf-8"))
    tape, settings = fold_job(job, models[job.model], Card()), AllocatorSettings()
    measured = row["measured"]["peak_alloc"], row["measured"]["peak_reserved"]
    shared, apart = replay(tape, settings), replay(tape, replace(settings, arena_bytes=0))
    assert (shared.allocated_bytes, shared.reserved_bytes) == measured
    assert (apart.allocated_bytes, apart.reserved_bytes) != measured
