"""Optimizers and float8 layers from packages of their own, on paper against the real ones, traced once
(tests/golden/packages)."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.job.optimizers import OPTIMIZERS
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.card import Card
from tunecast.tape.program import program
from tunecast.tape.schedule import scheduled
from tunecast.tape.shorten import steps_to_trace

pytestmark = pytest.mark.whole

HERE = Path(__file__).parents[1] / "golden" / "packages"
REFUSED = {
    "adamw_torch_xla": "a TPU's",
    "adamw_torch_npu_fused": "an NPU's",
    "adamw_anyprecision": "torchdistx is not on PyPI",
    "adalomo": "not written down",
}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases, make = loaded("package_cases"), loaded("make")
EVENTS: dict[str, list[int]] = json.loads(gzip.decompress((HERE / "events.json.gz").read_bytes()))


@pytest.mark.parametrize("name", cases.CASES)
def test_same_allocations_as_the_package(name: str) -> None:
    values, config = cases.CASES[name]
    tape = build(
        job_from_dict(values), config, [values["seq_len"]] * cases.STEPS, cases.card_of(name), torch_version="2.11.0"
    )
    ours, theirs = make.told(tape.events, cases.first_compared(name), cases.STEPS), EVENTS[name]
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == their, f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)


def test_what_is_not_written_down_is_named() -> None:
    unknown = [name for name, kind in OPTIMIZERS.items() if not kind.paper]
    assert sorted(unknown) == sorted(REFUSED)


@pytest.mark.parametrize("name", ["muon", "galore_adamw", "galore_adamw_layerwise", "grokadamw"])
def test_a_few_layers_stand_for_all(name: str) -> None:
    config, job = cases.LLAMA | {"num_hidden_layers": 8}, job_from_dict(cases.BASE | {"optimizer": name})
    lengths, order = steps_to_trace(job)
    whole = program(scheduled(build(job, config, lengths, Card()), order))
    assert list(fold_job(job, config, Card()).program.written_out()) == list(whole.written_out())


def test_projections_of_galore_by_hand() -> None:
    """A [512, 512] bf16 gradient: fp32 copy 1 MiB; U, singular values, Vh: 1 MiB, 2 KiB, 1 MiB; the matrix by columns
    and as much workspace again: 1 MiB each."""
    job = job_from_dict(cases.BASE | {"optimizer": "galore_adamw"})
    events = make.told(build(job, cases.LLAMA, [128], Card(), torch_version="2.11.0").events, 0, 1)
    mib = 2**20
    assert _holds(events, [mib, mib, 512 * 4, mib, mib, mib])


def _holds(events: list[int], wanted: list[Any]) -> bool:
    return any(events[start : start + len(wanted)] == wanted for start in range(len(events)))


def test_layerwise_takes_no_accumulation() -> None:
    job = job_from_dict(cases.BASE | {"optimizer": "galore_adamw_layerwise", "grad_accum": 2})
    with pytest.raises(UsageError, match="grad_accum"):
        build(job, cases.LLAMA, [128], Card())


def test_float8_needs_whole_sixteens() -> None:
    """A weight's gradient multiplies over tokens, and torch._scaled_mm takes them sixteen at a time."""
    with pytest.raises(UsageError, match="multiple of 16 tokens, has 100"):
        build(job_from_dict(cases.FLOAT8 | {"seq_len": 100}), cases.LLAMA, [100], Card())


def test_float4_needs_blackwell() -> None:
    with pytest.raises(UsageError, match="no tensor cores"):
        build(job_from_dict(cases.FLOAT4), cases.LLAMA, [128], Card())
