"""bitsandbytes' 8-bit weights under FSDP 2, as Axolotl patches it."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.prediction.modelled import require_modelled
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free, Op, Role

HIDDEN, INNER, WORDS, RANKS = 256, 384, 512, 4
LLAMA = {
    "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": WORDS,
    "num_key_value_heads": 8, "intermediate_size": INNER, "tie_word_embeddings": False,
}  # fmt: skip


def job_of(**more: Any) -> Job:
    job = {
        "model": "llama-3.2-1b", "stack": "axolotl", "seq_len": 64, "micro_batch": 1, "autocast": "bfloat16",
        "weights_dtype": "bfloat16", "method": "qlora", "lora": {"rank": 4, "targets": "attention"},
        "quantization": {"format": "int8", "prepare_kbit": False}, "hardware": {"gpus": RANKS},
        "parallel": {"data": "fsdp", "fsdp_version": 2}, **more,
    }  # fmt: skip
    return job_from_dict(job)


def test_a_rank_keeps_its_part_of_every_byte() -> None:
    """At the end: a quarter of a byte an element, 4 bytes a row for its scale on every rank; embedding and head in 2
    bytes, a quarter of each."""
    events = build(job_of(), LLAMA, [64, 64], Card()).events
    freed = {event.block for event in events if isinstance(event, Free)}
    left = [e for e in events if isinstance(e, Alloc) and e.role is Role.WEIGHTS and e.block not in freed]
    linear = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
    scales = 4 * 2 * (5 * HIDDEN + 2 * INNER)
    ends = 2 * 2 * WORDS * HIDDEN
    assert sum(event.nbytes for event in left) == pytest.approx((linear + ends) / RANKS + scales, rel=0.02)


def test_bytes_are_gathered_as_they_are() -> None:
    """A layer's, with its norms in bfloat16: a rank sends its part."""
    step = build(job_of(gradient_checkpointing=False), LLAMA, [64, 64], Card()).steps()[1]
    sent = {event.read_bytes for event in step if isinstance(event, Op) and event.name == "all_gather"}
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER + 2 * 2 * HIDDEN
    assert layer // RANKS in sent


def test_others_have_no_such_patch() -> None:
    require_modelled(job_of())
    for more in ({"stack": "trl"}, {"stack": "llama-factory"}, {"parallel": {"data": "fsdp", "fsdp_version": 1}}):
        with pytest.raises(UsageError, match="int8") as refusal:
            require_modelled(job_of(**more))
        assert refusal.value.field == "quantization.format"
