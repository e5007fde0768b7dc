"""A config.json that says only its sizes, and one that says everything: both have the parameters that transformers' own
configuration class gives the model, by name, shape and order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.stacks.transformers import load
from tunecast.tape.card import Card

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.17")

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
SAID: dict[str, dict[str, Any]] = {
    "Ministral3": {},
    "Glm4Moe": {},
    "Glm4MoeLite": {},
    "MiniMaxM2": {},
    "Lfm2": {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    "Lfm2Moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "Mistral4": {},
    "DeepseekV32": {},
}
"""By the name of the model's classes, what its configuration cannot do without."""


def shapes_on_paper(config: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    machine = Machine(Card(), Setup(DTYPES["bfloat16"]))
    model = load(job_from_dict({"model": "small", "weights_dtype": "bfloat16"}), config, machine)
    assert not machine.guesses
    found: dict[int, tuple[str, tuple[int, ...]]] = {}
    for module in model.modules():
        for name, tensor in module.own.items():
            if tensor.requires_grad:
                found.setdefault(id(tensor), (f"{module.path}.{name}", tensor.shape))
    return list(found.values())


@pytest.mark.parametrize("name", SAID)
def test_same_parameters_as_transformers(name: str) -> None:
    config = getattr(transformers, f"{name}Config")(**SAID[name])
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    model.tie_weights()
    expected = [(parameter, tuple(tensor.shape)) for parameter, tensor in model.named_parameters()]
    sizes = {"model_type": config.model_type, **{size: getattr(config, size) for size in SIZES}, **SAID[name]}
    assert shapes_on_paper(sizes) == expected
    assert shapes_on_paper(json.loads(config.to_json_string(use_diff=False))) == expected
