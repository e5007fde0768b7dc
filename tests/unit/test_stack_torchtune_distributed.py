"""torchtune's distributed recipe on paper."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.errors import TunecastError
from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free, Op, Role, Tape
from tunecast.tape.program import program
from tunecast.tape.shorten import steps_of

pytestmark = pytest.mark.whole

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
}  # fmt: skip
HEAD = 2048 * 256
LAYER = 256 * 256 * 2 + 64 * 256 * 2 + 704 * 256 * 3 + 256 * 2
ELEMENTS = 2 * HEAD + 2 * LAYER + 256
OUTPUT_CHUNKS = 8


def job(**values: Any) -> Any:
    common = {
        "model": "small", "stack": "torchtune", "weights_dtype": "bfloat16", "autocast": None, "max_grad_norm": 0,
        "optimizer": "adamw_torch_fused", "seq_len": 256, "micro_batch": 2, "gradient_checkpointing": True,
        "loss": "chunked", "hardware": {"gpus": 8}, "parallel": {"data": "fsdp"},
    }  # fmt: skip
    return job_from_dict(common | values)


def left(tape: Tape, role: Role) -> int:
    alive = {event.block: event for event in tape.events if isinstance(event, Alloc)}
    for event in tape.events:
        if isinstance(event, Free):
            alive.pop(event.block)
    return sum(block.nbytes for block in alive.values() if block.role is role)


def test_moments_are_of_parts_in_the_weights_dtype() -> None:
    """Fused AdamW counts steps on the card, a float a parameter."""
    tape = build(job(), CONFIG, [256, 256], Card())
    assert left(tape, Role.OPTIMIZER) == 2 * 2 * ELEMENTS // 8 + 4 * (2 + 2 * 9 + 1)


def test_the_head_is_gathered_for_every_chunk() -> None:
    """Forward and backward; its gradient is there, and scattered, when all chunks have added to it."""
    ops = [op for op in build(job(), CONFIG, [256, 256], Card()).steps()[1] if isinstance(op, Op)]
    heads = [op for op in ops if op.name == "all_gather" and op.read_bytes == 2 * HEAD // 8]
    embeddings = 2  # as large as the head
    assert len(heads) == 2 * OUTPUT_CHUNKS + embeddings
    sums = [op for op in ops if op.name == "reduce_scatter" and op.written_bytes == 2 * HEAD // 8]
    assert [op.module for op in sums] == ["output", "tok_embeddings"]


@pytest.mark.parametrize(("release", "gathers"), [("0.6", 2), ("0.7", 1)])
def test_ends_that_are_not_apart_are_gathered_with_the_rest(release: str, gathers: int) -> None:
    """Embedding, head and last norm in one: gathered in each pass, and since 0.7 they stay in between."""
    asked = job(parallel={"data": "fsdp", "shard_ends": False}, stack_version=release)
    ops = [op for op in build(asked, CONFIG, [256, 256], Card()).steps()[1] if isinstance(op, Op)]
    rest = [op for op in ops if op.name == "all_gather" and op.read_bytes == 2 * (2 * HEAD + 256) // 8]
    assert len(rest) == gathers


def test_only_torchtune_has_ends_apart() -> None:
    with pytest.raises(TunecastError) as refusal:
        predict(job(model="llama-3-8b", stack="transformers", loss=None, parallel={"data": "fsdp", "shard_ends": True}))
    assert refusal.value.field == "parallel.shard_ends" and "torchtune" in refusal.value.message


@pytest.mark.parametrize("compiled", [False, True])
def test_folded_is_whole(compiled: bool) -> None:
    asked, config = job(compile=compiled), CONFIG | {"num_hidden_layers": 7}
    folded, whole = fold_job(asked, config, Card()), build(asked, config, steps_of(asked), Card(), keeps_ops=False)
    assert list(folded.program.written_out()) == list(program(whole).written_out())


def test_a_published_run() -> None:
    """pytorch/torchtune, README of September 2024: Llama 3 70B, full, on 8 A100, offloaded: 13.9 GiB a card."""
    row = job_from_dict(
        {
            "model": "llama-3-70b", "stack": "torchtune", "stack_version": "0.3", "weights_dtype": "bfloat16",
            "autocast": None, "optimizer": "adamw_torch_fused", "max_grad_norm": 0.0, "seq_len": 2048,
            "micro_batch": 2, "gradient_checkpointing": True, "loss": "chunked", "compile": True,
            "data": {"packing": True}, "hardware": {"gpu": "a100-sxm-80gb", "gpus": 8},
            "parallel": {"data": "fsdp", "offload": "parameters"},
        }
    )  # fmt: skip
    assert predict(row).memory.allocated_bytes == pytest.approx(14_925_011_354, rel=0.03)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"method": "qlora", "lora": {"adapter_dtype": "bfloat16"}}, "quantization.format"),
        ({"optimizer_in_backward": True}, "optimizer_in_backward"),
        ({"parallel": {"data": "zero3"}}, "parallel.data"),
        ({"optimizer": "paged_adamw_8bit"}, "optimizer"),
    ],
)
def test_what_is_not_known_of_several_cards(values: dict[str, Any], field: str) -> None:
    with pytest.raises(TunecastError) as refusal:
        predict(job(**{"model": "llama-3-8b", **values}))
    assert refusal.value.field == field
