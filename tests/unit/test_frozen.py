"""Some modules of a model are trained whole, the rest is frozen. The referee is tests/trace/build_cases/frozen.py."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.prediction.outside.paper import tensors_on_paper
from tunecast.tape.build.frozen import is_trained
from tunecast.tape.build.job_runs import fold_job
from tunecast.tape.card import Card

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
LAYER = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
"""Four projections, three of the MLP, two norms."""


@pytest.mark.parametrize(
    ("name", "trained", "expected"),
    [
        ("model.layers.3.mlp.up_proj.weight", ["layers.3"], True),
        ("model.layers.31.mlp.up_proj.weight", ["layers.3"], False),
        ("model.layers.3.mlp.up_proj.weight", ["layers.3.self_attn"], False),
        ("lm_head.weight", ["layers.3", "lm_head"], True),
    ],
)
def test_names_are_compared_between_dots(name: str, trained: list[str], expected: bool) -> None:
    assert is_trained(name, trained) is expected


@pytest.mark.parametrize(("stack", "dtype"), [("transformers", "bfloat16"), ("llama-factory", "float32")])
def test_files_hold_the_states_of_what_is_trained(stack: str, dtype: str) -> None:
    job = Job(model="tiny", stack=stack, trained=("layers.3", "lm_head"), weights_dtype="bfloat16")
    tensors = tensors_on_paper(job, CONFIG)
    trained = [each for each in tensors if each.trainable]
    assert sum(each.elements for each in trained) == LAYER + 1000 * 64
    assert {each.dtype for each in trained} == {dtype}
    assert {each.dtype for each in tensors if not each.trainable} == {"bfloat16"}


def test_less_is_alive_the_less_is_trained() -> None:
    def most(trained: tuple[str, ...] | None) -> int:
        job = Job(model="tiny", trained=trained, seq_len=256, micro_batch=2, gradient_checkpointing=False)
        return fold_job(job, CONFIG, Card()).program.most_alive_bytes

    assert most(("layers.3",)) < most(("layers.0",)) < most(None)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"method": "lora", "trained": ["lm_head"]}, "which trains adapters"),
        ({"stack": "torchtune", "trained": ["lm_head"]}, "known of transformers, trl, axolotl, llama-factory"),
    ],
)
def test_where_it_cannot_be_said(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(TunecastError, match=told):
        Job(model="tiny", **fields)


def test_modules_that_are_not_there() -> None:
    with pytest.raises(TunecastError, match=r"trained: this model has no layers\.9"):
        fold_job(Job(model="tiny", trained=("layers.9",)), CONFIG, Card())
