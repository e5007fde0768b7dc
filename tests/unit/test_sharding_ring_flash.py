"""Axolotl's context parallelism on paper: figures of ring-flash-attn's code that can be redone by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Op, Role, Tape

LENGTH, RANKS, HIDDEN, HEADS, KEY_HEADS, WIDTH, INNER, WORDS = 320, 4, 256, 8, 2, 32, 384, 2048
LLAMA = {
    "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS, "intermediate_size": INNER, "vocab_size": WORDS, "head_dim": WIDTH,
    "tie_word_embeddings": False,
}  # fmt: skip


def tape_of(data: str = "fsdp", gpus: int = RANKS, **more: Any) -> Tape:
    job = {
        "model": "llama-3.2-1b", "stack": "axolotl", "seq_len": LENGTH, "micro_batch": 1, "autocast": "bfloat16",
        "attention": "flash_attention_2", "weights_dtype": "bfloat16", "gradient_checkpointing": False,
        "data": {"packing": True}, "parallel": {"data": data, "context": RANKS}, "hardware": {"gpus": gpus}, **more,
    }  # fmt: skip
    return build(job_from_dict(job), LLAMA, [LENGTH, LENGTH], Card())


def of_step(tape: Tape, name: str, group: str = "context") -> list[Op]:
    return [e for e in tape.steps()[1] if isinstance(e, Op) and e.name == name and e.group == group]


@pytest.mark.parametrize(("recomputed", "times"), [(False, 2), (True, 3)])
def test_keys_and_values_are_gathered_head_by_head(recomputed: bool, times: int) -> None:
    """Of each of 2 layers and key heads, in bfloat16: this rank's keys, then its values; in the forward pass, its
    repetition and the backward pass, which also scatters their gradients of all ranks."""
    tape = tape_of(gradient_checkpointing=recomputed)
    sent = 2 * LENGTH // RANKS * WIDTH
    assert [op.read_bytes for op in of_step(tape, "all_gather")] == [sent] * (2 * 2 * KEY_HEADS * times)
    assert [op.read_bytes for op in of_step(tape, "reduce_scatter")] == [sent * RANKS] * (2 * 2 * KEY_HEADS)


def test_the_last_rank_sees_all_keys() -> None:
    """Its 80 queries see 240 keys before and half of its own 80, counted twice as for any causal kernel: 560."""
    (flops,) = {op.flops for op in tape_of().steps()[1] if isinstance(op, Op) and op.name == "flash_attn::fwd"}
    assert flops == 4 * (HEADS // KEY_HEADS) * WIDTH * 80 * 560


def test_outside_attention_a_rank_has_its_tokens_alone() -> None:
    made = [e.nbytes for e in tape_of().steps()[1] if isinstance(e, Alloc)]
    assert 2 * LENGTH // RANKS * WORDS in made and 2 * LENGTH * WORDS not in made


@pytest.mark.parametrize(("data", "share"), [("fsdp", 8), ("zero2", 8), ("ddp", 1)])
def test_ranks_of_a_row_share_the_model_as_others_do(data: str, share: int) -> None:
    """Two moments of at least 2 bytes, a part of each weight a card."""
    tape = tape_of(data, gpus=8)
    held = sum(e.nbytes for e in tape.events if isinstance(e, Alloc) and e.role is Role.OPTIMIZER)
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEY_HEADS * WIDTH + 3 * HIDDEN * INNER + 2 * HIDDEN
    elements = 2 * WORDS * HIDDEN + 2 * layer + HIDDEN
    per_element = {"fsdp": 8, "zero2": 12, "ddp": 4}[data]
    assert held == pytest.approx(per_element * elements / share, rel=0.01)


def test_it_says_what_it_is_and_wants_flash_attention() -> None:
    assert any("ring-flash-attn" in told for told in tape_of().guesses)
    assert not any("not packed" in told for told in tape_of().guesses)
    with pytest.raises(UsageError, match="requires flash attention"):
        tape_of(attention="sdpa")
