"""Names of layers that get adapters, as PEFT compares them: with the end of a path."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.tape.build.adapters import last_part, raise_if_of_mamba

MODEL = SimpleNamespace(
    modules=lambda: [
        SimpleNamespace(path="layers.0.self_attn", children={"q_proj": None}),
        SimpleNamespace(path="layers.0.shared_mlp", children={"input_linear": None, "gate": None}),
        SimpleNamespace(path="layers.0.experts", children={"gate": None}),
    ]
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("q_proj", "q_proj"),
        ("self_attn.q_proj", "q_proj"),
        ("0.shared_mlp.input_linear", "input_linear"),
        ("shared_mlp.gate", "shared_mlp.gate"),  # the experts have one too
        ("mlp.input_linear", "mlp.input_linear"),  # it is in no module of that name
        ("mlp.down_proj", "mlp.down_proj"),
    ],
)
def test_a_path_is_its_last_part_where_that_says_as_much(given: str, expected: str) -> None:
    assert last_part(given, MODEL) == expected


@pytest.mark.parametrize(
    ("model_type", "release", "refused"),
    [
        ("nemotron_h", None, True),
        ("nemotron_h", "0.20.0", True),
        ("nemotron_h", "0.19.1", False),  # peft/tuners/tuners_utils.py names it since 0.20
        ("falcon_h1", "0.19.1", True),
    ],
)
def test_out_proj_of_mamba_is_refused_as_of_the_release_that_does(
    model_type: str, release: str | None, refused: bool
) -> None:
    job = Job(model="tiny", method="lora", peft_version=release)
    if refused:
        with pytest.raises(UsageError, match="PEFT refuses out_proj"):
            raise_if_of_mamba(job, model_type)
    else:
        raise_if_of_mamba(job, model_type)
