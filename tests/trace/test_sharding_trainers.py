"""Whole programs on one rank of eight, unmodified: the Trainer and TRL's, as a user starts them, against paper.

Same allocations and frees, on the same streams, from the first forward pass to the last step's optimizer; below a
kilobyte are numbers the Trainer keeps books with.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("datasets")
pytest.importorskip("peft")
pytest.importorskip("trl")

from installed import as_installed
from sharding_modules import loaded

from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, EmptyCache, Phase
from tunecast.tape.trace.run import trace_script

HERE = Path(__file__).parent
SCRIPT = str(HERE / "scripts_distributed" / "trainers.py")


JOB, LLAMA, told = loaded("cases").JOB, loaded("cases").LLAMA, loaded("trace_all").told
WORTH_COMPARING_BYTES = 1024
COMMON = JOB | {"hardware": {"gpus": 8}, "grad_accum": 1, "checkpoint_reentrant": False, "method": "full"}
LORA = {"method": "lora", "gradient_checkpointing": True}
CASES: dict[str, dict[str, Any]] = {
    "trainer-replicas": {"stack": "llama-factory", "parallel": {"data": "ddp"}},
    "trainer-replicas-8bit": {"stack": "llama-factory", "parallel": {"data": "ddp"}, "optimizer": "adamw_8bit"},
    "trainer-sharded": {
        "stack": "llama-factory", "parallel": {"data": "fsdp"}, "gradient_checkpointing": True, "grad_accum": 2,
    },
    "trainer-sharded-synced": {
        "stack": "llama-factory", "parallel": {"data": "fsdp", "sync_each_batch": True}, "gradient_checkpointing": True,
        "grad_accum": 3,
    },
    "trl-replicas-lora": {"stack": "trl", "parallel": {"data": "ddp"}, **LORA},
    "trl-sharded-lora": {"stack": "trl", "parallel": {"data": "fsdp"}, **LORA},
}  # fmt: skip
"""llama-factory stands for any stack of which only the Trainer is written down."""


def traced(name: str) -> Any:
    case = json.dumps({"job": COMMON | CASES[name], "config": LLAMA})
    return trace_script(SCRIPT, (case,), Card(), nproc_per_node=8, steps=2)


@pytest.fixture(scope="module")
def tapes() -> dict[str, Any]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(traced, CASES), strict=True))


def steps(events: Any) -> list[Any]:
    """From the first forward pass to the last optimizer step."""
    large = [event[:4] for event in told(events) if abs(event[2]) >= WORTH_COMPARING_BYTES]
    first = next(place for place, event in enumerate(large) if event[1] == "forward" and event[2] > 0)
    last = max(place for place, event in enumerate(large) if event[1] == "optimizer")
    return large[first : last + 1]


def wrapping(events: Any) -> list[int]:
    """What is asked for from the last time the cache was emptied to the first forward pass: it may stay cached."""
    asked: list[int] = []
    for event in events:
        if isinstance(event, EmptyCache):
            asked = []
        elif isinstance(event, Alloc) and event.nbytes >= WORTH_COMPARING_BYTES:
            asked.append(event.nbytes)
        elif isinstance(event, Begin) and event.phase is Phase.FORWARD:
            break
    return sorted(asked)


@pytest.mark.parametrize("name", CASES)
def test_the_whole_program_is_on_paper(tapes: dict[str, Any], name: str) -> None:

    tape, answer = tapes[name]
    assert (answer.error, answer.steps) == (None, 2)
    built = build(as_installed(COMMON | CASES[name]), LLAMA, [256, 256], Card())
    ours, theirs = steps(built.events), steps(tape.events)
    assert len(theirs) > 500
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine[2:] == their[2:], f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)
    assert wrapping(built.events) == wrapping(tape.events)
