"""What the tracer says a step allocates, against what an H200 did: every allocation and free of step 1, in order.

`data/h200_histories.jsonl.gz`: torch's own allocation history (`torch.cuda.memory._record_memory_history`) of ten jobs
cut to three or four layers, torch 2.11.0, transformers 5.17.0. A positive number is an allocation of that many bytes, a
negative one a free. Frees that follow each other directly may come in any order and are compared as a set.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free
from tunecast.tape.shorten import with_layers
from tunecast.tape.trace.run import trace_training

pytestmark = pytest.mark.trace
HERE = Path(__file__).parent
MODELS = json.loads((HERE.parents[1] / "benchmarks" / "data" / "h200_models.json").read_text())


def histories() -> list[dict[str, Any]]:
    with gzip.open(HERE / "data" / "h200_histories.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def settled(sizes: list[int]) -> list[int]:
    out: list[int] = []
    frees: list[int] = []
    for size in sizes:
        if size < 0:
            frees.append(size)
        else:
            out += [*sorted(frees), size]
            frees = []
    return out + sorted(frees)


@pytest.mark.parametrize("row", histories(), ids=lambda row: row["job"]["id"])
def test_every_allocation_of_a_step_is_the_cards(row: dict[str, Any]) -> None:
    job = job_from_dict(row["job"])
    for kernel in job.kernels:
        pytest.importorskip({"liger": "liger_kernel"}[kernel])
    config = with_layers(MODELS[job.model], row["layers"])
    tape = trace_training(job, config, [job.seq_len] * 3, Card())
    size = {event.block: event.nbytes for event in tape.events if isinstance(event, Alloc)}
    ours = [
        size[event.block] if isinstance(event, Alloc) else -size[event.block]
        for event in tape.steps()[1]
        if isinstance(event, (Alloc, Free)) and size[event.block]
    ]
    assert settled(ours) == settled(row["step_1"])
