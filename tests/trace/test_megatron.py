"""Megatron Core's training step on paper against its own code and TransformerEngine's Python, traced on a process group
that is not there: the same requests and frees, in the same order, on the same streams. Two layers, two steps.

Compared  model, loss, gradient buffers, DDP's hooks and optimizer of megatron-core; of TransformerEngine its layers,
          attention and FusedAdam in Python. Its C++ and cuDNN are not there: what they allocate is written down in
          sharding_cases/engine_stub.py, as their source has it, without the workspaces of norms and of attention.
Left out  what is smaller than 8 KiB: a number a token, rows of norms. What inductor borrows to time kernels. Pipelines,
          context and expert parallelism, adapters, low precisions, dropout: nobody compared those.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from sharding_modules import loaded

pytest.importorskip("torch")
if not all(map(importlib.util.find_spec, ("megatron", "transformer_engine"))):  # looked for, not imported: its library
    pytest.skip("needs megatron-core and TransformerEngine's Python: ./dev megatron", allow_module_level=True)

from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build
from tunecast.tape.build.stacks.megatron.linears import LARGE_WORKSPACE
from tunecast.tape.card import Card

HERE = Path(__file__).parent / "sharding_cases"
WORTH_COMPARING_BYTES = 8192
TIMING_BYTES = 60 * 2**20
"""What a kernel is timed with: it empties the L2 cache."""
OLDER_WORKSPACE = 32 * 2**20
"""Of TransformerEngine before 2.8; what is built is of the newest."""


CASES = loaded("megatron_cases")
told = loaded("trace_all").told


@pytest.fixture(scope="module")
def traced(
    selected: list[str], tmp_path_factory: pytest.TempPathFactory, trace_cases: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    cases = [[name, *CASES.case(name)] for name in selected]
    return trace_cases(HERE / "trace_megatron.py", cases, tmp_path_factory.mktemp("megatron"))


def parted(events: list[Any]) -> tuple[list[int], list[Any]]:
    """Bytes alive while all is made, one after the other; and what the steps ask for and let go: step, whether it is
    after the passes, size and stream. Frees between two requests are in no order."""
    first = next(place for place, event in enumerate(events) if event[1] == "forward" and event[2] > 0)
    alive = [0]
    for event in events[:first]:
        alive.append(alive[-1] + event[2])
    steps: list[Any] = []
    frees: list[Any] = []
    for step, phase, size, stream, _ in events[first:]:
        if abs(size) < WORTH_COMPARING_BYTES or abs(size) == TIMING_BYTES:
            continue
        if size < 0:
            frees.append([size, stream])
        else:
            size = OLDER_WORKSPACE if size == LARGE_WORKSPACE else size
            steps += [*sorted(frees), [step, phase not in ("forward", "backward"), size, stream]]
            frees = []
    return alive, steps + sorted(frees)


def state_and_rest(steps: list[Any]) -> tuple[int, list[Any]]:
    """Bytes the optimizer asks for, and all else."""
    state = [event for event in steps if len(event) == 4 and event[1]]
    return sum(event[2] for event in state), [event for event in steps if event not in state]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES.CASES)
def test_same_requests_as_megatron(traced: dict[str, Any], name: str) -> None:
    assert not isinstance(traced[name], str), traced[name]
    values, config, lengths = CASES.case(name)
    tape = build(job_from_dict({"stack_version": version("megatron-core"), **values}), config, lengths, Card())
    (our_load, ours), (their_load, theirs) = parted(told(tape.events)), parted(traced[name][0])
    if values["parallel"].get("data") == "zero1":  # a rank's share is a tensor here, there one for each weight in it
        (our_state, ours), (their_state, theirs) = state_and_rest(ours), state_and_rest(theirs)
        assert 0 <= our_state - their_state < WORTH_COMPARING_BYTES
    assert len(theirs) > 200
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        around = slice(max(0, place - 3), place + 3)
        assert mine == their, f"event {place} of {len(theirs)}: built {ours[around]}, traced {theirs[around]}"
    assert len(ours) == len(theirs)
    assert abs(our_load[-1] - their_load[-1]) < WORTH_COMPARING_BYTES
    assert abs(max(our_load) - max(their_load)) < WORTH_COMPARING_BYTES
