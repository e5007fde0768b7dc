"""Paged optimizers: their state lies on the card beside PyTorch's memory, and leaves where PyTorch needs the room."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.job import job_from_dict
from tunecast.prediction.memory.pages import CHUNK_BYTES, pages_bytes
from tunecast.units import MIB

pytestmark = pytest.mark.whole

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
MEASURED = {
    "closed_runs.jsonl": ("closed-15", "closed-21"),
    "generated_runs.jsonl": ("generated-09", "generated-13", "generated-20", "generated-21"),
    "h200_runs.jsonl": ("llama-3.1-8b-qlora-b2s2048-ckpt-optimizer=paged_adamw8bit",),
}
"""Runs on one H200 with `paged_adamw_8bit`; the first and last but one have no state large enough to be paged."""
CONTEXT_SPREAD_BYTES = 8 * MIB


def runs() -> list[dict[str, Any]]:
    found = []
    for file, ids in MEASURED.items():
        rows = [json.loads(line) for line in (DATA / file).read_text().splitlines()]
        found += [row for row in rows if row["job"]["id"] in ids]
    return found


@pytest.mark.parametrize("row", runs(), ids=lambda row: row["job"]["id"])
def test_the_card_holds_what_was_measured(row: dict[str, Any]) -> None:
    memory = predict(job_from_dict({**row["job"], "hardware": {"gpu": "h200-sxm-141gb"}})).memory
    assert abs(memory.device_bytes - row["measured"]["device_used"]) <= CONTEXT_SPREAD_BYTES
    assert sum(memory.breakdown_bytes.values()) == memory.device_bytes


def test_the_driver_takes_chunks() -> None:
    assert [pages_bytes(n) for n in (0, 1, CHUNK_BYTES, CHUNK_BYTES + 1)] == [
        0,
        CHUNK_BYTES,
        CHUNK_BYTES,
        2 * CHUNK_BYTES,
    ]


FULL = {"model": "llama-3.2-1b", "method": "full", "optimizer": "paged_adamw_32bit", "seq_len": 512, "micro_batch": 1}


def test_state_leaves_a_card_that_is_full() -> None:
    """8 bytes a weight of 1.24 billion; in need the least PyTorch completes with is what it was."""
    roomy = predict({**FULL, "hardware": {"gpu": "h200-sxm-141gb"}})
    paged = roomy.memory.breakdown_bytes["paged_optimizer"]
    assert paged == pages_bytes(2 * 4 * 1_235_746_816)
    least = roomy.smallest_capacity_bytes
    tight = predict({**FULL, "hardware": {"gpu": "h200-sxm-141gb", "capacity_bytes": least + 100 * MIB}})
    assert tight.fits and tight.smallest_capacity_bytes == least
    assert tight.memory.device_bytes <= least + 100 * MIB + tight.memory.breakdown_bytes["context"]
    assert tight.memory.breakdown_bytes.get("paged_optimizer", 0) <= 100 * MIB
