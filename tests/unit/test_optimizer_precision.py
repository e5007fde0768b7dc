"""What an optimizer keeps of a weight, in bytes that can be counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.errors import Unsupported
from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import whole_tape
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Role

SIZES: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "vocab_size": 2304,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True,
}  # fmt: skip
WEIGHTS = 2304 * 256 + 2 * (256 * 256 * 2 + 2 * 256 * 64 + 3 * 256 * 640 + 2 * 256) + 256
TENSORS = 1 + 2 * 9 + 1


def job(**fields: Any) -> Any:
    base = {"model": "small", "weights_dtype": "bfloat16", "autocast": None, "micro_batch": 1, "seq_len": 128,
            "stack": "automodel", "optimizer": "te_fused_adam"}  # fmt: skip
    return job_from_dict(base | fields)


def state_bytes(**fields: Any) -> int:
    tape = whole_tape(job(**fields), SIZES, Card())
    return sum(event.nbytes for event in tape.events if isinstance(event, Alloc) and event.role is Role.OPTIMIZER)


@pytest.mark.parametrize(
    ("fields", "each", "beside"),
    [
        ({}, 8, 0),
        ({"optimizer_state_dtype": "float32"}, 8, 0),
        ({"optimizer_state_dtype": "bfloat16"}, 4, 2 * 4),
        ({"master_weights": "float32"}, 12, 0),
        ({"master_weights": "remainders"}, 10, 0),
        ({"master_weights": "remainders", "weights_dtype": "float32"}, 12, 0),
        ({"master_weights": "remainders", "optimizer_state_dtype": "bfloat16"}, 6, 2 * 4),
    ],
    ids=str,
)
def test_transformer_engines_adam(fields: dict[str, Any], each: int, beside: int) -> None:
    """Moments are of float32 whatever the weights are, or of bfloat16 with a scale each; one flag for all."""
    assert state_bytes(**fields) == WEIGHTS * each + TENSORS * beside + 4


@pytest.mark.parametrize(
    ("fields", "each"),
    [
        ({}, 3),
        ({"master_weights": "none"}, 2),
        ({"master_weights": "remainders"}, 4),
        ({"weights_dtype": "float32"}, 2),
    ],
    ids=str,
)
def test_flash_adamw(fields: dict[str, Any], each: int) -> None:
    """Moments of a byte, a scale of two bytes for 32 numbers of either; of 16-bit weights 24 bits are kept in all."""
    assert state_bytes(optimizer="flash_adamw", **fields) == WEIGHTS * each + 2 * 2 * WEIGHTS // 32


def test_what_was_read_alone_is_an_estimate() -> None:
    for optimizer in ("te_fused_adam", "flash_adamw"):
        made = job_from_dict({"model": "llama-3.2-1b", "seq_len": 256, "micro_batch": 1, "optimizer": optimizer})
        said = predict(made)
        assert said.exactness == "estimate" and any(optimizer in reason for reason in said.reasons)


def shared(**fields: Any) -> int:
    tape = whole_tape(
        job(stack="megatron", optimizer="adamw_torch", hardware={"gpus": 2}, parallel={"data": "zero1"}, **fields),
        SIZES | {"tie_word_embeddings": False},
        Card(),
    )
    return sum(event.nbytes for event in tape.events if isinstance(event, Alloc) and event.role is Role.OPTIMIZER)


def test_megatrons_optimizer_that_is_aware_of_precisions() -> None:
    """A rank has half of the weights' masters and moments: 12 bytes a weight, 10 with remainders, 6 in bfloat16."""
    plain = shared()
    share, rest = divmod(plain, 12)
    assert rest == 0
    assert shared(master_weights="float32") == shared(optimizer_state_dtype="float32") == plain
    assert shared(master_weights="remainders") == 10 * share
    assert shared(optimizer_state_dtype="bfloat16") == 6 * share
    assert shared(optimizer_state_dtype="bfloat16", master_weights="float32") == 8 * share


def test_awareness_comes_with_the_shared_optimizer() -> None:
    with pytest.raises(Unsupported, match="optimizer_state_dtype: got bfloat16"):
        whole_tape(job(stack="megatron", optimizer="adamw_torch", optimizer_state_dtype="bfloat16"), SIZES, Card())
