"""The closed form against its referee: the same allocations and frees as the tracer, in the same order.

Every case is two layers of a small model, two steps. A difference names the first event that differs. The model is made
on the card here, in an order of our own; how a checkpoint is loaded has its referee in test_loading.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card

HERE = Path(__file__).parent / "build_cases"
SOURCE = Path(__file__).parents[2] / "src"
JOB = {
    "model": "small", "weights_dtype": "bfloat16", "autocast": "bfloat16", "seq_len": 256, "micro_batch": 2,
    "optimizer": "adamw_torch", "max_grad_norm": 1.0, "gradient_checkpointing": False,
}  # fmt: skip


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> dict[str, tuple[dict[str, Any], dict[str, Any], list[int]]]:
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if not path.stem.startswith("trace_"):
            for name, values, config in loaded(path).CASES:
                job = JOB | values
                lengths = list(job.get("lengths") or [job["seq_len"]] * 2)
                found[f"{path.stem}/{name}"] = (job, config, lengths)
    return found


CASES = cases()


@pytest.fixture(scope="module")
def traced(
    selected: list[str], tmp_path_factory: pytest.TempPathFactory, trace_cases: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    cases = [[name, *CASES[name]] for name in selected]
    return trace_cases(HERE / "trace_all.py", cases, tmp_path_factory.mktemp("build"))


@pytest.mark.parametrize("name", CASES)
def test_same_allocations_as_the_tracer(traced: dict[str, Any], name: str) -> None:
    import torch

    expected = traced[name]
    assert not isinstance(expected, str), f"the tracer: {expected}"
    values, config, lengths = CASES[name]
    told = loaded(HERE / "trace_all.py").told
    tape = build(job_from_dict(values), config, lengths, Card(), torch_version=torch.__version__)
    ours = [event for event in told(tape.events) if event[1] != "load"]
    theirs = [event for event in expected if event[1] != "load"]
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine[:3] == their[:3], f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)
    assert abs(held_after_load(told(tape.events)) - held_after_load(expected)) < 4096, "small tables may differ"


def held_after_load(events: list[Any]) -> int:
    return sum(event[2] for event in events if event[1] == "load")
