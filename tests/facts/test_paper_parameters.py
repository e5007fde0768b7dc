"""The closed form's models have the parameters the registry says, which are transformers' own (test_model_registry)."""

from __future__ import annotations

import pytest

from tunecast.errors import Unsupported
from tunecast.job import job_from_dict
from tunecast.job.registry import bundled_config, bundled_models
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.stacks.transformers import load
from tunecast.tape.card import Card

LEAST_KNOWN = 172
"""Of the bundled models. A release that knows fewer has lost something."""


def parameters_on_paper(name: str) -> int | None:
    machine = Machine(Card(), Setup(DTYPES["bfloat16"]))
    try:
        model = load(job_from_dict({"model": name, "weights_dtype": "bfloat16"}), bundled_config(name), machine)
    except Unsupported:
        return None
    if machine.guesses:  # an architecture taken for its neighbour, or only the text part of several
        return None
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", bundled_models())
def test_parameters(name: str) -> None:
    entry = bundled_models()[name]
    found = parameters_on_paper(name)
    if found is None:
        pytest.skip("an architecture the closed form leaves to the tracer")
    assert found in (entry["parameters"], entry.get("parts", {}).get("text"))


def test_nearly_all_are_known() -> None:
    assert sum(parameters_on_paper(name) is not None for name in bundled_models()) >= LEAST_KNOWN
