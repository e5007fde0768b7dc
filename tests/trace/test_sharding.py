"""A rank on paper against its referee: the same allocations and frees, on the same streams, and the same collectives.

The referee is the tracer on real code: torch's DistributedDataParallel and, through accelerate, its `fully_shard`, one
rank of a process group that is not there. Two layers, two steps. A difference names the first event that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from installed import as_installed
from sharding_modules import loaded

from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card

HERE = Path(__file__).parent / "sharding_cases"
SOURCE = Path(__file__).parents[2] / "src"
SMALL_TABLES_BYTES = 4096
"""Of loading alone: tables of values that are made once."""


CASES = loaded("cases")
TRACING = loaded("trace_all")


@pytest.fixture(scope="module")
def traced(
    selected: list[str], tmp_path_factory: pytest.TempPathFactory, trace_cases: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    cases = [[name, *CASES.case(name)] for name in selected]
    return trace_cases(HERE / "trace_all.py", cases, tmp_path_factory.mktemp("sharding"))


def parted(events: list[Any]) -> tuple[list[Any], list[Any]]:
    """Loading with what it lets go of, and the steps."""
    first = next(place for place, event in enumerate(events) if event[1] != "load" and event[2] > 0)
    return events[:first], events[first:]


@pytest.mark.parametrize("name", CASES.CASES)
def test_same_allocations_and_collectives_as_the_tracer(traced: dict[str, Any], name: str) -> None:

    expected = traced[name]
    assert not isinstance(expected, str), f"the tracer: {expected}"
    values, config, lengths = CASES.case(name)
    tape = build(as_installed(values), config, lengths, Card())
    (our_loading, ours), (their_loading, theirs) = parted(TRACING.told(tape.events)), parted(expected[0])
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine[:4] == their[:4], f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)
    held = [sum(event[2] for event in loading) for loading in (our_loading, their_loading)]
    assert abs(held[0] - held[1]) < SMALL_TABLES_BYTES
    assert sent(TRACING.sent(tape.events)) == sent(expected[1])


def sent(collectives: list[Any]) -> list[Any]:
    """Name, bytes and ranks. The tracer sees neither which stream NCCL takes for itself nor, on the host, anything."""
    return [collective[:4] for collective in collectives if collective[0] != "broadcast"]
