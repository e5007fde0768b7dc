"""What follows from the model: the dtype weights load in, what gets adapters, and that no default is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.job.model import bundled_models, resolve_model
from tunecast.prediction.engines import analytic
from tunecast.tape.build.fill_in import fill_in, fill_in_of

pytestmark = pytest.mark.whole

LLAMA = {"model_type": "llama", "torch_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("fields", "config", "dtype"),
    [
        ({}, LLAMA, "bfloat16"),
        ({}, {"model_type": "gpt2"}, "float32"),  # nothing says it
        ({}, {"dtype": "torch.float16"}, "float16"),
        ({}, {"text_config": {"dtype": "bfloat16"}, "torch_dtype": "float32"}, "bfloat16"),
        ({}, {"torch_dtype": ["?"]}, "float32"),
        ({"weights_dtype": "float32"}, LLAMA, "float32"),  # what is given stays
        ({"stack": "trl"}, {"torch_dtype": "float16"}, "float16"),
        ({"stack": "unsloth", "method": "lora"}, {"torch_dtype": "float16"}, "bfloat16"),
        ({"stack": "torchtune"}, {"torch_dtype": "float32"}, "bfloat16"),
        ({"stack": "litgpt"}, LLAMA, "float32"),
        ({"stack": "llama-factory"}, LLAMA, "float32"),  # what is trained is cast
        ({"stack": "llama-factory", "method": "lora"}, LLAMA, "bfloat16"),
    ],
)
def test_the_dtype_weights_load_in(fields: dict[str, Any], config: dict[str, Any], dtype: str) -> None:
    filled = fill_in(job_from_dict({"model": "m", **fields}), config)
    assert filled.weights_dtype == dtype
    assert fill_in(filled, config) is filled


def test_the_weights_own_headers_say_it_where_the_configuration_does_not() -> None:
    assert fill_in(Job("m"), {"model_type": "bloom"}, stored="float16").weights_dtype == "float16"
    assert fill_in(Job("m"), LLAMA, stored="float16").weights_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("model_type", "lora", "targets", "dropout"),
    [
        ("llama", {}, ("q_proj", "v_proj"), 0.05),
        ("smollm3", {}, "all-linear", 0.05),  # PEFT has no choice of its own
        ("llama4_text", {}, "attention", 0.05),  # nor here, and its router cannot be adapted
        ("mixtral", {}, ("q_proj", "v_proj"), 0.05),
        ("mixtral", {"targets": "all-linear"}, "all-linear", 0.0),  # experts are parameters
        ("mixtral", {"targets": ["w1"]}, ("w1",), 0.0),
        ("mixtral", {"targets": "attention"}, "attention", 0.05),
        ("mixtral", {"targets": "all-linear", "dropout": 0.1}, "all-linear", 0.1),  # the user's, to be refused by name
    ],
)
def test_what_gets_adapters(model_type: str, lora: dict[str, Any], targets: Any, dropout: float) -> None:
    filled = fill_in(job_from_dict({"model": "m", "method": "lora", "lora": lora}), {"model_type": model_type})
    assert (filled.lora.targets, filled.lora.dropout) == (targets, dropout)


def test_a_full_fine_tune_has_no_adapters_to_fill_in() -> None:
    assert fill_in(Job("m"), LLAMA).lora == Job("m").lora


def test_what_is_filled_in_was_not_given() -> None:
    model = resolve_model("llama-3.2-1b")
    filled = fill_in_of(job_from_dict({"model": "llama-3.2-1b", "micro_batch": 8}), model)
    assert filled.weights_dtype == "bfloat16" and not filled.is_given("weights_dtype")
    assert filled.is_given("micro_batch"), "given, though it is the default"


SMALLEST = {
    str(entry["family"]): name
    for name, entry in sorted(bundled_models().items(), key=lambda each: -int(each[1]["parameters"]))
}
"""Of each family, the smallest model."""


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_no_default_is_refused(method: str) -> None:
    """A model and a method, of every architecture there is: an answer, or that the architecture has no closed form."""
    refused = {}
    for name in SMALLEST.values():
        try:
            analytic(job_from_dict({"model": name, "method": method, "seq_len": 128, "micro_batch": 1}))
        except Unsupported:
            continue
        except UsageError as error:
            refused[name] = error.message
    assert not refused


def test_a_stack_that_casts_nothing_is_not_asked_to() -> None:
    """fsdp_qlora trains in bfloat16 alone, and calls no preparation of PEFT's: what was not written is as it does."""
    given = {"model": "m", "stack": "fsdp_qlora", "method": "qlora"}
    filled = fill_in(job_from_dict(given), LLAMA)
    assert (filled.autocast, filled.quantization.prepare_kbit) == (None, False)
    assert fill_in(job_from_dict({**given, "autocast": "bfloat16"}), LLAMA).autocast == "bfloat16"


@pytest.mark.parametrize(
    ("given", "prepares", "adapters", "reentrant"),
    [
        ({"method": "qlora"}, False, "bfloat16", None),
        ({"method": "qlora", "trl_version": "0.26"}, False, "bfloat16", None),
        ({"method": "qlora", "trl_version": "0.25"}, True, "float32", None),
        ({"method": "qlora", "transformers_version": "4.48.1"}, True, "float32", None),
        ({"method": "qlora", "quantization": {"prepare_kbit": True}}, True, "bfloat16", None),  # the user's own call
        ({"method": "lora"}, True, "float32", None),  # PEFT's cast, which TRL leaves as it is
        ({"method": "lora", "parallel": {"data": "zero3"}}, True, "bfloat16", True),
        ({"method": "lora", "parallel": {"data": "zero3"}, "checkpoint_reentrant": False}, True, "bfloat16", True),
        ({"method": "lora", "parallel": {"data": "zero3"}, "trl_version": "1.6"}, True, "float32", True),
        ({"method": "lora", "parallel": {"data": "zero3"}, "trl_version": "0.27"}, True, "float32", None),
        ({"parallel": {"data": "zero3"}}, True, "float32", None),
    ],
)
def test_what_trl_does_by_itself(given: dict[str, Any], prepares: bool, adapters: str, reentrant: bool | None) -> None:
    """Also where nothing else is open: a job that names dtype, targets and dropout."""
    said = {"weights_dtype": "bfloat16"}
    if "method" in given:
        said["lora"] = {"targets": "all-linear", "dropout": 0.0}
    for more in ({}, said):
        filled = fill_in(job_from_dict({"model": "m", "stack": "trl", **given, **more}), LLAMA)
        found = (filled.quantization.prepare_kbit, filled.lora.adapter_dtype, filled.checkpoint_reentrant)
        assert found == (prepares, adapters, reentrant)
        assert fill_in(filled, LLAMA) is filled
