"""Embeddings and rerankers: what sentence-transformers' trainers were traced to do, and the closed form."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden" / "stacks" / "sentence_transformers"
WORTH_COMPARING_BYTES = 1024


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = loaded(GOLDEN / "embedding_cases.py").CASES
TRACED = json.loads(gzip.decompress((GOLDEN / "events.json.gz").read_bytes()))


@pytest.mark.parametrize("name", CASES)
def test_same_allocations_as_were_traced(name: str) -> None:
    case = CASES[name]
    told = loaded(TESTS / "trace" / "build_cases" / "trace_all.py").told
    tape = build(job_from_dict(case["job"]), case["config"], [case["length"]] * case["steps"], Card())
    assert worth_comparing(told(tape.events)) == worth_comparing(TRACED[name])


def worth_comparing(events: list[Any]) -> list[Any]:
    """From the first forward pass to the last optimizer's step. Between steps the tracer counts batches with the one
    before; below a kilobyte are numbers trainers keep books with."""
    large = [event[:3] for event in events if abs(event[2]) >= WORTH_COMPARING_BYTES]
    first = next(place for place, event in enumerate(large) if event[1] == "forward")
    last = max(place for place, event in enumerate(large) if event[1] == "optimizer")
    return [[None, *event[1:]] if event[1] == "other" else event for event in large[first : last + 1]]
