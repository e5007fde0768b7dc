"""The load phase against its referee: `from_pretrained` traced, the same requests and frees in the same order.

The models are those of the build cases, each with every dtype and packing that occurs there. The tracer has no cache:
the block that warms it up is asked for whole, and tensors are loaded by one thread.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("bitsandbytes")

sys.path.insert(0, str(Path(__file__).parent))

from installed import as_installed
from test_build import CASES, HERE, JOB, loaded

from tunecast.job import job_from_dict
from tunecast.tape.build.loads import load_tape
from tunecast.tape.card import Card

NOT_COMPARABLE = {
    "older/gpt2 longer than its table full": "steps alone make the table longer; a checkpoint has its own",
    "older/falcon qlora": "from_pretrained packs what is exactly nn.Linear, which none of Falcon's layers is",
    "older/falcon 40b qlora": "the same",
}


def distinct_loads() -> dict[str, Any]:
    """Of the build cases those that load something else than the ones before them."""
    found: dict[tuple[object, ...], str] = {}
    for name, (values, config, _) in CASES.items():
        job = job_from_dict(values)
        if job.quantization.format != "gptq" and job.transformers_version is None:
            key = (json.dumps(config, sort_keys=True), job.weights_dtype, job.quantization)
            found.setdefault(key, name)
    return {name: CASES[name] for name in found.values() if name not in NOT_COMPARABLE}


LOADS = distinct_loads() | {
    f"stored/{name}": (JOB | values, config, []) for name, values, config in loaded(HERE / "stored.py").LOADS
}


@pytest.fixture(scope="module")
def traced(
    selected: list[str], tmp_path_factory: pytest.TempPathFactory, trace_cases: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    cases = [[name, *LOADS[name]] for name in selected]
    return trace_cases(HERE / "trace_loads.py", cases, tmp_path_factory.mktemp("loads"))


@pytest.mark.parametrize("name", LOADS)
def test_same_requests_as_from_pretrained(traced: dict[str, Any], name: str) -> None:
    expected = traced[name]
    assert not isinstance(expected, str), f"the tracer: {expected}"
    values, config, _ = LOADS[name]
    told = loaded(HERE / "trace_all.py").told
    ours = told(load_tape(as_installed(values), config, Card(), {"cached_bytes": 0}).events)
    for place, (mine, their) in enumerate(zip(ours, expected, strict=False)):
        assert mine[:3] == their[:3], f"event {place} of {len(expected)}: built {mine}, traced {their}"
    assert len(ours) == len(expected)
