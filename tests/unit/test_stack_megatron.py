"""Megatron Core on paper: what one rank holds, computes and sends, redone by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.mapping import job_from_dict
from tunecast.tape.build.run import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Op, Role, Tape

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024,
}  # fmt: skip
LAYER = 256 * (8 + 2 * 4) * 32 + 256 * 256 + 256 * 2 * 512 + 512 * 256
"""Weights of qkv, proj, fc1 and fc2."""
TOKENS = 2 * 128


def tape_of(parallel: dict[str, Any] | None = None, gpus: int = 1, **changes: Any) -> Tape:
    given = {
        "model": "llama-3.2-1b", "stack": "megatron", "method": "full", "weights_dtype": "bfloat16", "seq_len": 128,
        "micro_batch": 2, "gradient_checkpointing": False, "autocast": None,
        "parallel": parallel or {}, "hardware": {"gpus": gpus}, **changes,
    }  # fmt: skip
    return build(job_from_dict(given), CONFIG, [128, 128], Card())


def product_flops(tape: Tape, step: int = 1) -> int:
    return sum(e.flops for e in tape.steps()[step] if isinstance(e, Op) and e.name in ("mm", "_scaled_mm"))


def sent(tape: Tape, what: str, group: str, step: int = 1) -> list[int]:
    events = tape.steps()[step]
    return [e.read_bytes for e in events if isinstance(e, Op) and e.name == what and e.group == group]


def weights(tape: Tape) -> int:
    return sum(e.nbytes for e in tape.events if isinstance(e, Alloc) and e.role is Role.WEIGHTS)


def test_products_are_six_flops_a_weight_and_token() -> None:
    assert product_flops(tape_of()) == 6 * TOKENS * (2 * LAYER + 256 * 1024)


def test_adapters_leave_out_the_gradients_of_frozen_weights() -> None:
    lora = tape_of(method="lora", lora={"rank": 4, "targets": "attention"})
    # Two a weight forward and two back, none for the weights; products of adapters come on top. The first layer's
    # input needs no gradient, nor does the head's weight.
    assert product_flops(lora) < 4 * TOKENS * (2 * LAYER + 256 * 1024)


@pytest.mark.parametrize("ways", [2, 4])
def test_tensor_parallelism_splits_products_and_weights_evenly(ways: int) -> None:
    whole, part = tape_of(), tape_of({"tensor": ways}, gpus=ways)
    assert product_flops(part) * ways == product_flops(whole)
    norms = (2 * 2 + 1) * 256 * 2
    assert (weights(part) - norms) * ways == weights(whole) - norms


def test_a_layer_gathers_and_scatters_its_tokens() -> None:
    """Forward: qkv and fc1 gather, proj and fc2 scatter. Back: proj and fc2 gather, qkv and fc1 scatter and gather
    their input once more for the weights."""
    part = tape_of({"tensor": 2}, gpus=2)
    shard = TOKENS // 2 * 256 * 2
    gathers = [size for size in sent(part, "all_gather", "tensor") if size == shard]
    assert len(gathers) == 2 * (2 + 2 + 2) + 2 + 1  # layers; head, with its input again; the embedding's gradient
    scatters = sent(part, "reduce_scatter", "tensor")
    assert scatters.count(2 * shard) == 2 * (2 + 2) + 1 + 1


def test_ranks_of_a_ring_share_the_attention() -> None:
    def flops(tape: Tape) -> int:
        return sum(e.flops for e in tape.steps()[1] if isinstance(e, Op) and "attention" in e.name)

    whole, part = tape_of(), tape_of({"context": 2}, gpus=2)
    assert 2 * flops(part) == flops(whole)
    keys_and_values = 2 * (TOKENS // 2) * 4 * 32 * 2
    assert sent(part, "send", "context") == [keys_and_values] * 2 + [2 * keys_and_values] * 2


def test_data_parallel_ranks_share_the_optimizer_and_exchange_every_gradient() -> None:
    tape = tape_of({"data": "zero1"}, gpus=4)
    parameters = weights(tape) // 2
    states = sum(e.nbytes for e in tape.events if isinstance(e, Alloc) and e.role is Role.OPTIMIZER)
    assert states == 3 * 4 * -(-parameters // 4)
    assert sum(sent(tape, "reduce_scatter", "data")) == 4 * parameters
    assert len(sent(tape, "reduce_scatter", "data")) == 2 + 1  # a layer each, and the rest


def test_gradients_are_summed_once_a_step_whatever_the_micro_batches() -> None:
    tapes = (tape_of({"data": "zero1"}, gpus=4, grad_accum=count) for count in (1, 3))
    once, often = (sent(tape, "reduce_scatter", "data") for tape in tapes)
    assert once == often


def test_a_first_stage_holds_as_many_micro_batches_as_there_are_stages() -> None:
    def saved(tape: Tape) -> int:
        return max_live(tape, Role.ACTIVATIONS)

    one = tape_of({"pipeline": 2}, gpus=2, grad_accum=1)
    two = tape_of({"pipeline": 2}, gpus=2, grad_accum=4)
    assert saved(two) == 2 * saved(one)


def max_live(tape: Tape, role: Role) -> int:
    from tunecast.tape.op import Free

    live: dict[int, int] = {}
    most = 0
    for event in tape.events:
        if isinstance(event, Alloc) and event.role is role:
            live[event.block] = event.nbytes
            most = max(most, sum(live.values()))
        elif isinstance(event, Free):
            live.pop(event.block, None)
    return most


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(TunecastError, match="divisor of 8"):
        tape_of({"tensor": 3}, gpus=3)
