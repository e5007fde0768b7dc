"""Liger's kernels for architectures nobody traced with them, and experts in few bits: estimates that say so."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import whole_tape
from tunecast.tape.build.liger import MODELS
from tunecast.tape.build.liger_kin import KERNELS
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Role, Tape

MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 256, "intermediate_size": 640, "moe_intermediate_size": 128,
    "num_hidden_layers": 2, "vocab_size": 2304, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
    "num_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 4096,
}  # fmt: skip
LOGITS = 256 * 2304
"""Of one row of 256 tokens."""


def tape(config: dict[str, Any], **fields: Any) -> Tape:
    given = {"model": "small", "seq_len": 256, "micro_batch": 1, "stack": "axolotl", "method": "lora", **fields}
    return whole_tape(job_from_dict(given), config, Card())


def has_logits(made: Tape) -> bool:
    """Of the whole row, in float32."""
    return any(isinstance(event, Alloc) and event.nbytes == 4 * LOGITS for event in made.events)


def test_no_architecture_is_in_both_tables() -> None:
    assert not set(KERNELS) & set(MODELS)


def test_no_logits_of_a_whole_row_with_a_fused_head() -> None:
    """256 tokens in chunks of 2304 / 256 = 9 parts: 32 tokens a chunk, so an eighth of the logits."""
    plain, fused = tape(MOE), tape(MOE, kernels=["liger"])
    assert has_logits(plain) and not has_logits(fused)
    assert any("those for qwen3_moe follow" in guess and "experts are left out" in guess for guess in fused.guesses)


NEOX: dict[str, Any] = {
    "model_type": "gpt_neox", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2,
    "num_attention_heads": 8, "vocab_size": 2304, "max_position_embeddings": 512,
}  # fmt: skip


def test_what_liger_does_not_know_is_trained_without() -> None:
    """transformers says so and goes on; axolotl fuses the head all the same."""
    targets = {"lora": {"targets": ["query_key_value"]}}
    fused = tape(NEOX, kernels=["liger"], **targets)
    assert any("the head and the loss alone" in guess for guess in fused.guesses)
    plain, same = (tape(NEOX, stack="llama-factory", kernels=kernels, **targets) for kernels in ([], ["liger"]))
    assert has_logits(plain) and has_logits(same) and not has_logits(fused)
    assert any("no kernels for gpt_neox" in assumed for assumed in same.assumptions)


@pytest.mark.parametrize(("packed", "bits"), [("nf4", 4), ("int8", 8)])
def test_experts_in_few_bits(packed: str, bits: int) -> None:
    """Of 2 layers with 8 experts of three matrices of 256 x 128; scales are a few bytes more."""
    weights = 2 * 8 * 3 * 256 * 128

    def held(experts: bool) -> int:
        options = {"format": packed, "experts": experts, "prepare_kbit": False}
        made = tape(MOE, method="qlora", quantization=options, lora={"targets": "attention"})
        return sum(event.nbytes for event in made.events if isinstance(event, Alloc) and event.role is Role.WEIGHTS)

    spared = held(False) - held(True)
    assert weights * (16 - bits) / 8 * 0.9 < spared <= weights * (16 - bits) / 8
