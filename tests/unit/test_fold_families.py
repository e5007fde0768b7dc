"""Every architecture on paper: the folded run of seven layers is the one built with all of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.card import Card
from tunecast.tape.program import program
from tunecast.tape.schedule import NotRepeatable, scheduled
from tunecast.tape.shorten import steps_of, steps_to_trace, with_layers

pytestmark = pytest.mark.whole

CASES = Path(__file__).parents[1] / "trace" / "build_cases"
JOB = {"model": "small", "weights_dtype": "bfloat16", "seq_len": 128, "micro_batch": 1}
WAYS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": None},
    "lora": {"method": "lora", "lora": {"targets": "all-linear", "dropout": 0.0}, "gradient_checkpointing": True},
    "lengths": {"method": "lora", "lora": {"targets": "all-linear", "dropout": 0.0}, "lengths": [128, 96, 128, 64, 96]},
}


def configs() -> dict[str, dict[str, Any]]:
    """One of each architecture."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(CASES.glob("*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        if not path.stem.startswith("trace_"):
            spec.loader.exec_module(module)
            for _, _, config in module.CASES:
                found.setdefault(config.get("text_config", config)["model_type"], config)
    return found


CONFIGS = configs()


def stretched(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """More layers of the same kinds: lists with an entry a layer go on as they began."""
    longer = with_layers(config, layers)
    text, before = longer.get("text_config", longer), config.get("text_config", config)
    few = before["num_hidden_layers"] if "num_hidden_layers" in before else before.get("n_layer", 0)
    for name, value in before.items():
        if isinstance(value, list) and len(value) == few:
            text[name] = [value[layer % few] for layer in range(layers)]
    return longer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model_type", CONFIGS)
def test_folded_is_built(model_type: str, way: str) -> None:
    job, config = job_from_dict(JOB | WAYS[way]), stretched(CONFIGS[model_type], 7)
    try:
        folded = fold_job(job, config, Card())
    except UsageError as error:
        pytest.skip(error.message)  # PEFT refuses these adapters
    lengths, order = steps_to_trace(job)
    try:
        tape = scheduled(build(job, config, lengths, Card()), order)
    except NotRepeatable:
        tape = scheduled(build(job, config, steps_of(job), Card()), range(len(steps_of(job))))
    ours, theirs = list(folded.program.written_out()), list(program(tape).written_out())
    differ = next((row for row, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    assert differ is None, f"row {differ} of {len(theirs)}: folded {ours[differ]}, built {theirs[differ]}"
    assert len(ours) == len(theirs)
