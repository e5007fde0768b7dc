"""Megatron Core on paper: what one rank holds, computes and sends, redone by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.mapping import job_from_dict
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free, Op, Role, Tape

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024,
}  # fmt: skip
LAYER = 256 * (8 + 2 * 4) * 32 + 256 * 256 + 256 * 2 * 512 + 512 * 256
"""Weights of qkv, proj, fc1 and fc2."""
TOKENS = 2 * 128


def tape_of(
    parallel: dict[str, Any] | None = None, gpus: int = 1, config: dict[str, Any] = CONFIG, **changes: Any
) -> Tape:
    given = {
        "model": "llama-3.2-1b", "stack": "megatron", "method": "full", "weights_dtype": "bfloat16", "seq_len": 128,
        "micro_batch": 2, "gradient_checkpointing": False, "autocast": None,
        "parallel": parallel or {}, "hardware": {"gpus": gpus}, **changes,
    }  # fmt: skip
    job = job_from_dict(given)
    return build(job, config, [job.seq_len] * 2, Card())


def product_flops(tape: Tape, step: int = 1) -> int:
    return sum(e.flops for e in tape.steps()[step] if isinstance(e, Op) and e.name in ("mm", "_scaled_mm"))


def sent(tape: Tape, what: str, group: str, step: int = 1) -> list[int]:
    events = tape.steps()[step]
    return [e.read_bytes for e in events if isinstance(e, Op) and e.name == what and e.group == group]


def weights(tape: Tape) -> int:
    """Those that stay."""
    gone = {e.block for e in tape.events if isinstance(e, Free)}
    return sum(e.nbytes for e in tape.events if isinstance(e, Alloc) and e.role is Role.WEIGHTS and e.block not in gone)


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
        return sum(e.flops for e in tape.steps()[1] if isinstance(e, Op) and "fused_attn" in e.name)

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


def live(tape: Tape, role: Role, step: int = -1) -> int:
    return sum(e.nbytes for e in tape.steps()[step] if isinstance(e, Alloc) and e.role is role)


def test_a_tied_head_is_the_embedding_and_in_a_pipeline_its_copy() -> None:
    """1,024 rows of 256, two bytes each."""
    table = 1024 * 256 * 2
    tied, untied = ({**CONFIG, "tie_word_embeddings": told} for told in (True, False))
    assert weights(tape_of(config=untied)) - weights(tape_of(config=tied)) == table
    stage = {"parallel": {"pipeline": 2}, "gpus": 2}
    assert weights(tape_of(config=untied, **stage)) == weights(tape_of(config=tied, **stage))


def test_a_vocabulary_is_padded_so_that_every_rank_has_128_rows_or_a_multiple() -> None:
    """1,000 rows become 1,024."""
    assert weights(tape_of(config={**CONFIG, "vocab_size": 1000})) == weights(tape_of())


def test_without_a_shared_optimizer_every_rank_has_all_of_it_and_sums_its_gradients() -> None:
    alone, shared = (tape_of({"data": data}, gpus=4) for data in ("ddp", "zero1"))
    parameters = weights(alone) // 2
    states = [
        sum(e.nbytes for e in t.events if isinstance(e, Alloc) and e.role is Role.OPTIMIZER) for t in (alone, shared)
    ]
    assert states == [12 * parameters, 3 * parameters]
    assert sum(sent(alone, "all_reduce", "data")) == 4 * parameters and not sent(alone, "reduce_scatter", "data")


@pytest.mark.parametrize(
    ("stack", "said", "width"),
    [("megatron", None, 4), ("nemo", None, 2), ("megatron", "bfloat16", 2), ("nemo", "float32", 4)],
)
def test_gradients_lie_in_the_dtype_they_are_summed_in(stack: str, said: str | None, width: int) -> None:
    tape = tape_of({"data": "zero1", "reduce_dtype": said}, gpus=4, stack=stack)
    assert live(tape, Role.GRADIENTS) == width * weights(tape) // 2


def test_eager_attention_keeps_scores_of_every_pair_of_tokens() -> None:
    """Two rows, eight heads, 192 x 192 scores: they, their softmax, and back their gradient, in each of two layers."""
    fused, eager = (tape_of(attention=kind, seq_len=192) for kind in ("sdpa", "eager"))
    scores = 2 * 8 * 192 * 192 * 2
    kept = [sum(e.nbytes == scores for e in t.steps()[1] if isinstance(e, Alloc)) for t in (fused, eager)]
    assert kept == [0, 2 * 3]


def test_without_sequence_parallelism_sums_stay_whole() -> None:
    """Forward: proj and fc2; back: qkv and fc1; the head's gradient; the embedding. The loss has three of its own."""
    part = tape_of({"tensor": 2, "sequence_parallel": False}, gpus=2)
    assert not sent(part, "reduce_scatter", "tensor")
    whole = TOKENS * 256 * 2
    assert sent(part, "all_reduce", "tensor").count(whole) == 2 * (2 + 2) + 1 + 1


def test_frozen_weights_in_float8_take_a_byte() -> None:
    plain, packed = (
        tape_of(method="lora", stack="nemo", lora={"rank": 4, "targets": "attention"}, **more)
        for more in ({}, {"quantization": {"format": "float8"}})
    )
    assert weights(plain) - weights(packed) == 2 * LAYER  # two layers, a byte less each weight; ends and norms stay
    assert max_live(packed, Role.ACTIVATIONS) < max_live(plain, Role.ACTIVATIONS)


def test_nothing_is_kept_of_the_input_of_a_frozen_weight() -> None:
    """Full training keeps the normalised input of qkv and fc1 and what fc2 is given; adapters on attention do not need
    those of the MLP."""
    full = tape_of(micro_batch=2)
    lora = tape_of(method="lora", lora={"rank": 4, "targets": "attention", "dropout": 0.0})
    assert max_live(lora, Role.ACTIVATIONS) < max_live(full, Role.ACTIVATIONS) - 2 * TOKENS * 512 * 2


def test_interleaved_stages_keep_more_under_way() -> None:
    """Two ranks with two pieces: on the first 1 + 2 + 2 passes of one layer, where 1F1B has 2 of two."""
    four = {**CONFIG, "num_hidden_layers": 4}
    plain, interleaved = (
        tape_of({"pipeline": 2, "virtual_stages": count}, gpus=2, grad_accum=4, config=four) for count in (1, 2)
    )
    assert max_live(plain, Role.ACTIVATIONS) < max_live(interleaved, Role.ACTIVATIONS)


def test_packed_samples_do_not_see_each_other() -> None:
    def flops(tape: Tape) -> int:
        return sum(e.flops for e in tape.steps()[1] if isinstance(e, Op) and "fused_attn" in e.name)

    alone, packed = (flops(tape_of(data={"packing": told}, seq_len=4096)) for told in (False, True))
    assert 4096 / 384 - 1 < alone / packed < 4096 / 384 + 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallel": {"pipeline": 2, "virtual_stages": 2}, "grad_accum": 3, "gpus": 2}, "multiple of it; nearest: 4"),
        ({"parallel": {"context": 2}, "attention": "eager", "gpus": 2}, "fused attention alone"),
        ({"parallel": {"reduce_dtype": "float16"}}, "grad_reduce_in_fp32"),
        ({"optimizer": "adamw_torch_8bit"}, "adamw_torch_8bit"),
        ({"autocast": "bfloat16", "weights_dtype": "float32"}, "autocast"),
        ({"recompute": "selective"}, "recompute"),
    ],
)
def test_what_is_not_modelled_is_refused(changes: dict[str, Any], words: str) -> None:
    from tunecast.door.predict import predict

    given = {
        "model": "llama-3.2-1b", "stack": "megatron", "method": "full", "weights_dtype": "bfloat16", "autocast": None,
        "seq_len": 128, **changes,
    }  # fmt: skip
    given["hardware"] = {"gpus": given.pop("gpus", 1)}
    with pytest.raises(TunecastError, match=words):
        predict(job_from_dict(given))


def test_a_pipeline_of_experts_is_priced() -> None:
    from tunecast.door.predict import predict

    job = {
        "model": "mixtral-8x7b", "stack": "nemo", "method": "full", "weights_dtype": "bfloat16", "seq_len": 4096,
        "micro_batch": 1, "grad_accum": 8, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8, "nodes": 4},
        "parallel": {"data": "zero1", "tensor": 2, "pipeline": 4, "expert": 4},
    }  # fmt: skip
    said = predict(job_from_dict(job))
    assert said.time is not None and said.time.step_s > 0


def test_nemo_shares_its_optimizer_where_nothing_is_said() -> None:
    said = [tape_of(given, gpus=4, stack="nemo") for given in ({}, {"data": "zero1"}, {"data": "ddp"})]
    states = [sum(e.nbytes for e in t.events if isinstance(e, Alloc) and e.role is Role.OPTIMIZER) for t in said]
    assert states[0] == states[1] < states[2]


EXPERTS: dict[str, Any] = CONFIG | {
    "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
}  # fmt: skip
EXPERT = 3 * 256 * 128
"""Weights of one."""


def roles(tape: Tape, role: Role) -> int:
    return sum(e.nbytes for e in tape.events if isinstance(e, Alloc) and e.role is role)


def test_experts_are_split_over_cards_of_their_own() -> None:
    """Eight experts in each of two layers over four cards; each whole on its card, or in as many parts as layers."""
    split = {"data": "zero1", "tensor": 4, "expert": 4}
    whole, parts = (tape_of(split | {"expert_tensor": ways}, 4, EXPERTS) for ways in (1, None))
    with pytest.raises(TunecastError, match="expert_tensor"):
        tape_of(split | {"expert_tensor": 3}, 4, EXPERTS)
    assert weights(whole) - weights(parts) == 2 * 2 * EXPERT * 2 * 3 // 4
    assert product_flops(whole) == product_flops(parts)  # ranks of one expert gather their tokens


def test_cards_that_hold_the_same_experts_share_their_optimizer() -> None:
    """On eight cards with experts over four, two hold the same ones: a half each, of all else an eighth."""
    tape = tape_of({"data": "zero1", "expert": 4}, 8, EXPERTS)
    experts = 2 * 2 * EXPERT
    rest = weights(tape) // 2 - experts
    assert roles(tape, Role.OPTIMIZER) == 3 * 4 * (experts // 2 + rest // 8)
    assert sent(tape, "reduce_scatter", "data").count(2 * EXPERT * 4) == 2


@pytest.mark.parametrize(("stack", "adapters"), [("megatron", 2), ("nemo", 1)])
def test_experts_have_adapters(stack: str, adapters: int) -> None:
    """In ms-swift one for each expert, two of which are here; in NeMo one for those of a card."""
    lora = {"rank": 4, "targets": ["gate_proj", "up_proj", "down_proj"], "dropout": 0.0}
    tape = tape_of({"expert": 4}, 4, EXPERTS, method="lora", lora=lora, stack=stack)
    one = 4 * (256 + 2 * 128) + 4 * (128 + 256)
    assert roles(tape, Role.ADAPTERS) == 2 * adapters * one * 2


def test_the_compiled_loss_makes_its_exponentials_beside_the_logits() -> None:
    """Logits in bfloat16 and twice in float32, where torch's own has them once in float32."""
    logits = TOKENS * 1024
    peaks = [peak_of(tape_of(loss=loss), "output_layer") for loss in ("full", "fused")]
    assert peaks[1] - peaks[0] == 4 * logits


def peak_of(tape: Tape, module: str) -> int:
    """Most that is there at once of what a module asks for."""
    live = most = 0
    sizes: dict[int, int] = {}
    for event in tape.events:
        if isinstance(event, Alloc) and event.module == module:
            sizes[event.block] = event.nbytes
            live += event.nbytes
            most = max(most, live)
        elif isinstance(event, Free):
            live -= sizes.pop(event.block, 0)
    return most


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"loss": "fused"}, "loss"), ({"parallel": {"expert_tensor": 1}}, "parallel.expert_tensor")],
)
def test_what_is_megatrons_alone(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(TunecastError) as refused:
        job_from_dict({"model": "llama-3.2-1b", "stack": "transformers", **changes})
    assert refused.value.field == field
