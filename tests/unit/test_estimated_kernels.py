"""Kernels that were compared with nothing: the answer is an estimate, and says which field makes it one."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.errors import Unsupported
from tunecast.job import job_from_dict
from tunecast.prediction.prediction import Prediction
from tunecast.tape.build.job_runs import whole_tape
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Op, Phase, Tape

SIZES: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "vocab_size": 2304,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096,
}  # fmt: skip
TOKENS = 2 * 256
JOB = {"model": "small", "weights_dtype": "bfloat16", "autocast": None, "micro_batch": 2, "seq_len": 256,
       "gradient_checkpointing": False}  # fmt: skip


def tape(config: dict[str, Any] | None = None, **fields: Any) -> Tape:
    return whole_tape(job_from_dict({**JOB, **fields}), config or SIZES, Card())


def forward_bytes(made: Tape) -> int:
    """What the first step's forward pass asks for in all."""
    events = made.steps()[0]
    backward = next(at for at, event in enumerate(events) if isinstance(event, Begin) and event.phase is Phase.BACKWARD)
    return sum(event.nbytes for event in events[:backward] if isinstance(event, Alloc))


def sizes(made: Tape) -> set[int]:
    return {event.nbytes for event in made.events if isinstance(event, Alloc)}


def predicted(**fields: Any) -> Prediction:
    return predict(job_from_dict({"model": "llama-3.2-1b", "seq_len": 512, "micro_batch": 1, **fields}))


@pytest.mark.parametrize("attention", ["flex_attention", "xformers"])
def test_attention_that_nobody_compared(attention: str) -> None:
    said, flash = predicted(attention=attention), predicted(attention="flash_attention_2")
    assert said.exactness == "estimate" and any(f"attention {attention}" in reason for reason in said.reasons)
    assert flash.exactness == "exact"
    assert said.memory.allocated_bytes == pytest.approx(flash.memory.allocated_bytes, rel=0.01)


def test_flex_attention_shares_keys_among_a_power_of_two_of_heads() -> None:
    """Of 8 heads, 2 have keys and values of their own: nothing is copied. Of 12 with 4, keys and values are repeated
    for all 12, in each of 2 layers."""
    twelve = SIZES | {"num_attention_heads": 12, "num_key_value_heads": 4}
    for config, repeated_bytes in ((SIZES, 0), (twelve, 2 * 2 * TOKENS * 12 * 32 * 2)):
        flex, flash = (tape(config, attention=name) for name in ("flex_attention", "flash_attention_2"))
        result = TOKENS * config["num_attention_heads"] * 32 * 2
        more = forward_bytes(flex) - forward_bytes(flash) - repeated_bytes
        assert 0 <= more <= 2 * result, "the result is laid out anew, and logarithms are kept twice for a moment"
        assert any("flex_attention" in guess for guess in flex.guesses) and not flash.guesses


def test_flex_attention_has_no_dropout() -> None:
    with pytest.raises(Unsupported, match="flex_attention knows no dropout"):
        tape(SIZES | {"attention_dropout": 0.1}, attention="flex_attention")
    assert tape(SIZES | {"attention_dropout": 0.1}, attention="xformers").guesses


def test_a_head_that_makes_no_logits() -> None:
    """Of 512 tokens and 2,304 words: what is kept besides the hidden states is a number and a place a token, and a
    number a word; the backward pass makes gradients of the hidden states and the head."""
    plain, cut = (tape(method="full", kernels=kernels) for kernels in ([], ["cut_cross_entropy"]))
    logits_bytes = {TOKENS * 2304 * 2, TOKENS * 2304 * 4}
    assert logits_bytes & sizes(plain) and not logits_bytes & sizes(cut)
    products = [op for op in cut.steps()[0] if isinstance(op, Op) and op.shapes[:2] == ((TOKENS, 256), (256, 2304))]
    assert len(products) == 1 + 1 + 2, "forward; again in the backward pass, and a product for each gradient"
    assert cut.guesses and not plain.guesses


@pytest.mark.parametrize("kernel", ["cut_cross_entropy", "lora_triton"])
def test_kernels_that_nobody_compared(kernel: str) -> None:
    job = {"stack": "axolotl", "method": "lora"}
    said, plain = predicted(kernels=[kernel], **job), predicted(**job)
    assert said.exactness == "estimate" and any(f"kernels {kernel}" in reason for reason in said.reasons)
    assert said.memory.allocated_bytes <= plain.memory.allocated_bytes


def test_trl_has_a_head_of_its_own() -> None:
    with pytest.raises(Unsupported, match="kernels: got cut_cross_entropy"):
        predicted(kernels=["cut_cross_entropy"], stack="trl")


def test_parts_of_liger_on_paper() -> None:
    """All of them are what liger is; the head without logits alone is less than that and more than nothing."""
    parts = ["liger_rope", "liger_rms_norm", "liger_glu", "liger_fused_linear_cross_entropy"]
    whole, named, head, none = (tape(kernels=each) for each in (["liger"], parts, parts[3:], []))
    assert named.events == whole.events
    assert forward_bytes(whole) < forward_bytes(head) < forward_bytes(none)
    assert not whole.guesses and not head.guesses
    # Liger's loss makes no logarithms of all probabilities: of 512 tokens and 2,304 words 4 bytes each
    without = tape(kernels=[*parts[:3], "liger_cross_entropy"]), tape(kernels=parts[:3])
    less = forward_bytes(without[1]) - forward_bytes(without[0])
    assert less == pytest.approx(4 * TOKENS * 2304, rel=0.02)
