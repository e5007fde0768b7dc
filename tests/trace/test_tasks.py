"""Tasks beyond the language model's own loss: TRL's own trainers under the tracer, against paper.

Same allocations and frees from the first step to the last optimizer's; below a kilobyte are numbers trainers keep books
with. Cases are in task_cases/, one file a kind of task; programs/ there holds the scripts that train them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets")
pytest.importorskip("peft")
pytest.importorskip("trl")

from installed import as_installed

from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card

pytestmark = pytest.mark.newer
HERE = Path(__file__).parent / "task_cases"
WORTH_COMPARING_BYTES = 1024


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> dict[str, dict[str, Any]]:
    """A case is what its program asks for, and `job`: what it is to tunecast."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if not path.stem.startswith("trace_"):
            found |= {f"{path.stem}/{name}": case for name, case in loaded(path).CASES.items()}
    return found


CASES = cases()


@pytest.fixture(scope="module")
def traced(
    selected: list[str], tmp_path_factory: pytest.TempPathFactory, trace_cases: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    asked = [[name, {key: value for key, value in CASES[name].items() if key != "job"}] for name in selected]
    return trace_cases(HERE / "trace_tasks.py", asked, tmp_path_factory.mktemp("tasks"))


@pytest.mark.parametrize("name", CASES)
def test_same_allocations_as_the_tracer(traced: dict[str, Any], name: str) -> None:
    expected = traced[name]
    assert not isinstance(expected, str), f"the tracer: {expected}"
    case = CASES[name]
    told = loaded(HERE.parent / "build_cases" / "trace_all.py").told
    tape = build(as_installed(case["job"]), case["config"], [case["job"]["seq_len"]] * case["steps"], Card())
    ours, theirs = (worth_comparing(events) for events in (told(tape.events), expected))
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine[:3] == their[:3], f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)


PRECOMPUTED = [name for name, case in CASES.items() if case.get("reference") == "precomputed"]


@pytest.mark.parametrize("name", PRECOMPUTED)
def test_same_pass_before_training(traced: dict[str, Any], name: str) -> None:
    """Log-probabilities of a reference that is asked beforehand: the first of the passes over the data, to the sums of
    its last rows; what follows lets go of the batch."""
    case = CASES[name]
    told = loaded(HERE.parent / "build_cases" / "trace_all.py").told
    tape = build(as_installed(case["job"]), case["config"], [case["job"]["seq_len"]] * case["steps"], Card())
    ours, theirs = (first_pass(events) for events in (told(tape.events), traced[name]))
    last = max(place for place, event in enumerate(ours) if event[2] > 0)
    assert last > 100
    assert [event[:3] for event in ours[: last + 1]] == [event[:3] for event in theirs[: last + 1]]


def first_pass(events: list[Any]) -> list[Any]:
    """While loading, from the first embedding on."""
    large = [event for event in events if event[1] == "load" and abs(event[2]) >= WORTH_COMPARING_BYTES]
    first = next(place for place, event in enumerate(large) if event[3].startswith("embedding"))
    return [event for event in large[first:] if not event[3].startswith("cublas_workspace")]


def worth_comparing(events: list[Any]) -> list[Any]:
    """From the first forward pass or rollout to the last optimizer's step; what the end of the program frees is no
    step's. Between steps the tracer, who sees a step begin with its forward pass, counts batches with the one before.
    Workspaces come with the first product, which may be one of those that make adapters: on the card here, on the host
    in a script."""
    large = [
        event
        for event in events
        if abs(event[2]) >= WORTH_COMPARING_BYTES and not event[3].startswith("cublas_workspace")
    ]
    first = next(place for place, event in enumerate(large) if event[1] in ("generate", "forward"))
    last = max(place for place, event in enumerate(large) if event[1] == "optimizer")
    return [[None, *event[1:]] if event[1] == "other" else event for event in large[first : last + 1]]
