"""Axolotl's expert parallelism on paper: what a rank loads, keeps, sends and sums."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.prediction.modelled import require_modelled
from tunecast.tape.build.job_runs import build
from tunecast.tape.build.sharding.deep_ep import received
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free, Op, Role, Tape

HIDDEN, INNER, EXPERTS, TOP, TOKENS, RANKS, LAYERS = 64, 32, 8, 2, 128, 4, 2
QWEN = {
    "model_type": "qwen3_moe", "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "num_experts": EXPERTS,
    "num_experts_per_tok": TOP, "moe_intermediate_size": INNER,
}  # fmt: skip
OF_EXPERTS = LAYERS * EXPERTS * 3 * HIDDEN * INNER


def job_of(expert: int = RANKS, gpus: int = RANKS, **more: Any) -> Job:
    job = {
        "model": "llama-3.2-1b", "stack": "axolotl", "seq_len": TOKENS, "micro_batch": 1, "weights_dtype": "bfloat16",
        "autocast": "bfloat16", "gradient_checkpointing": False, "parallel": {"expert": expert},
        "hardware": {"gpus": gpus}, **more,
    }  # fmt: skip
    return job_from_dict(job)


def tape_of(**more: Any) -> Tape:
    return build(job_of(**more), QWEN, [TOKENS, TOKENS], Card())


def left(tape: Tape, role: Role) -> int:
    freed = {event.block for event in tape.events if isinstance(event, Free)}
    kept = [e for e in tape.events if isinstance(e, Alloc) and e.role is role and e.block not in freed]
    return sum(event.nbytes for event in kept)


def test_all_are_loaded_and_a_part_is_kept() -> None:
    whole, split = tape_of(expert=1), tape_of()
    assert left(whole, Role.WEIGHTS) - left(split, Role.WEIGHTS) == 2 * OF_EXPERTS * 3 // 4
    made = [sum(e.nbytes for e in t.events if isinstance(e, Alloc) and e.role is Role.WEIGHTS) for t in (whole, split)]
    assert made[1] - made[0] == 2 * OF_EXPERTS // 4


def test_a_token_goes_once_to_each_rank_that_has_one_of_its_experts() -> None:
    """Of 4 x 128 tokens with 2 of 8 experts 7 in 16 choose one of a rank's. Rows and weights there, the results back,
    and the same backwards."""
    assert received(TOKENS, RANKS, TOP) == 4 * TOKENS * 7 // 16 == 224
    step = tape_of().steps()[1]
    sent = [e for e in step if isinstance(e, Op) and e.name == "all_to_all" and e.group == "expert"]
    assert len(sent) == LAYERS * 6
    assert sum(e.read_bytes == 2 * TOKENS * HIDDEN for e in sent) == LAYERS * 2
    assert sum(e.read_bytes == 2 * 224 * HIDDEN for e in sent) == LAYERS * 2


def test_replicas_leave_them_alone() -> None:
    def summed(tape: Tape) -> int:
        return sum(e.read_bytes for e in tape.steps()[1] if isinstance(e, Op) and e.name == "all_reduce")

    assert summed(tape_of(expert=1)) - summed(tape_of()) == 2 * OF_EXPERTS


def test_on_all_cards_and_without_fsdp() -> None:
    require_modelled(job_of())
    for job, told in (
        (job_of(gpus=8), "To fix: 4 cards"),
        (job_of(parallel={"expert": 4, "data": "fsdp"}), "not known together"),
    ):
        with pytest.raises(UsageError, match=told) as refusal:
            require_modelled(job)
        assert refusal.value.field == "parallel.expert"
    with pytest.raises(UsageError, match="known of"):
        require_modelled(job_of(stack="trl"))
