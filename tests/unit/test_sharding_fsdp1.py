"""FSDP 1 on paper, with sizes a reader can redo: a layer of the model below has 737,792 weights in bf16."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.build.sharding.flat_unit import FREED
from tunecast.tape.build.stacks import program_of
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Event, Free, Op, Phase, Role

WIDTH, INNER, WORDS, LAYERS, LENGTH = 256, 704, 2048, 2, 64
CONFIG = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
LAYER = WIDTH * WIDTH * 2 + WIDTH * WIDTH // 2 * 2 + 3 * WIDTH * INNER + 2 * WIDTH
"""Queries and outputs, keys and values of half as many heads, the MLP, two norms."""
ROOT = 2 * WORDS * WIDTH + WIDTH
UNSHARD, POST_BACKWARD, PRE_UNSHARD = 1, 2, 3
LORA = {"method": "lora", "lora": {"rank": 8, "targets": ["q_proj"]}}


def job_of(ranks: int = 2, **values: Any) -> Any:
    parallel = {"data": "fsdp", "fsdp_version": 1, **values.pop("parallel", {})}
    return job_from_dict(
        {
            "model": "small", "weights_dtype": "bfloat16", "autocast": None, "seq_len": LENGTH, "micro_batch": 1,
            "optimizer": "adamw_torch", "max_grad_norm": 0.0, "gradient_checkpointing": False, "parallel": parallel,
            "hardware": {"gpu": "h200-sxm-141gb", "gpus": ranks}, **values,
        }
    )  # fmt: skip


def events_of(steps: int = 2, config: dict[str, Any] = CONFIG, **values: Any) -> tuple[Event, ...]:
    return build(job_of(**values), config, [LENGTH] * steps, Card()).events


def held(events: tuple[Event, ...], phase: Phase, step: int) -> list[Alloc]:
    """What is alive when a phase of a step begins."""
    alive: dict[int, Alloc] = {}
    for event in events:
        if isinstance(event, Begin) and (event.phase, event.step) == (phase, step):
            break
        if isinstance(event, Alloc):
            alive[event.block] = event
        elif isinstance(event, Free):
            del alive[event.block]
    return list(alive.values())


def bytes_of(blocks: list[Alloc], role: Role) -> int:
    return sum(block.nbytes for block in blocks if block.role is role)


def gathers(events: tuple[Event, ...]) -> list[Op]:
    return [event for event in events if isinstance(event, Op) and event.name == "all_gather"]


def test_a_rank_keeps_its_part_of_everything() -> None:
    for ranks in (2, 4):
        blocks = held(events_of(ranks=ranks), Phase.FORWARD, 1)
        parts = 2 * (LAYERS * LAYER + ROOT) // ranks
        tables = 2 * 4 * 32  # the rotary table and its copy, fp32
        assert bytes_of(blocks, Role.WEIGHTS) == parts + tables
        assert bytes_of(blocks, Role.OPTIMIZER) == 2 * parts


def test_weights_trained_in_mixed_precision_are_float32_and_travel_in_the_low_one() -> None:
    events = events_of(autocast="bfloat16")
    parts = 4 * (LAYERS * LAYER + ROOT) // 2
    assert bytes_of(held(events, Phase.FORWARD, 1), Role.OPTIMIZER) == 2 * parts
    assert {(op.dtype, op.stream) for op in gathers(events)} == {("bfloat16", UNSHARD)}
    sizes = {2 * LAYER // 2, 2 * ROOT // 2}
    cast = [e for e in events if isinstance(e, Alloc) and e.stream == PRE_UNSHARD]
    assert {block.nbytes for block in cast} == sizes


def test_parts_are_equally_long() -> None:
    """Over 3 ranks a layer's weights do not divide; each parameter starts at a multiple of 16 bytes already."""
    part = -(-LAYER // 3)
    assert LAYER % 3
    assert 2 * part in {op.read_bytes for op in gathers(events_of(ranks=3))}


def test_layers_are_gathered_twice_a_step_and_the_model_itself_once() -> None:
    """With both layers recomputed outside their units, as transformers before 4.52 did it, three times."""
    assert len(gathers(events_of(steps=1))) == 2 * LAYERS + 1
    again = {"gradient_checkpointing": True, "checkpoint_reentrant": True}
    assert len(gathers(events_of(steps=1, **again))) == 2 * LAYERS + 1
    assert len(gathers(events_of(steps=1, transformers_version="4.48.1", **again))) == 3 * LAYERS + 1


def test_a_whole_gradient_goes_when_its_layer_is_done_and_a_part_stays() -> None:
    events = events_of(steps=1)
    after = held(events, Phase.OPTIMIZER, 0)
    assert bytes_of(after, Role.GRADIENTS) == 2 * (LAYERS * LAYER + ROOT) // 2
    scattered = [e for e in events if isinstance(e, Op) and e.name == "reduce_scatter"]
    assert [op.read_bytes for op in scattered] == [2 * LAYER, 2 * LAYER, 2 * ROOT]
    assert {op.stream for op in scattered} == {POST_BACKWARD}


def test_whole_gradients_wait_for_the_last_micro_batch() -> None:
    events = events_of(steps=1, grad_accum=2)
    second = [place for place, e in enumerate(events) if isinstance(e, Begin) and e.phase is Phase.FORWARD][1]
    alive = held(events[:second], Phase.OPTIMIZER, 99)
    assert bytes_of(alive, Role.GRADIENTS) == 2 * (LAYERS * LAYER + ROOT)


def test_adapters_are_units_of_their_own_and_frozen_weights_have_no_gradients() -> None:
    events = events_of(steps=1, **LORA)
    after = held(events, Phase.OPTIMIZER, 0)
    assert bytes_of(after, Role.GRADIENTS) == LAYERS * 4 * (8 * WIDTH * 2) // 2
    assert sum(isinstance(e, Op) and e.name == "reduce_scatter" for e in events) == 2 * LAYERS


def test_scales_of_packed_weights_are_whole_on_every_rank() -> None:
    quantised = {"quantization": {"format": "nf4", "prepare_kbit": False, "double_quant": False}}
    blocks = held(events_of(**{**LORA, "method": "qlora"}, **quantised), Phase.FORWARD, 1)
    packed = LAYERS * (LAYER - 2 * WIDTH)
    flat = packed // 2 + 2 * (2 * LAYERS * WIDTH + ROOT)
    scales, codes, tables = 4 * packed // 64, 7 * LAYERS * 64, 2 * 4 * 32
    assert bytes_of(blocks, Role.WEIGHTS) == flat // 2 + scales + codes + tables


def test_on_the_host_a_card_keeps_no_weights_and_no_optimizer() -> None:
    blocks = held(events_of(parallel={"offload": "parameters"}), Phase.FORWARD, 1)
    assert bytes_of(blocks, Role.WEIGHTS) == 2 * 4 * 32
    assert bytes_of(blocks, Role.OPTIMIZER) == bytes_of(blocks, Role.GRADIENTS) == 0


def test_weights_of_two_dtypes_are_refused() -> None:
    with pytest.raises(UsageError, match="one dtype only"):
        events_of(**{**LORA, "method": "qlora"}, quantization={"format": "nf4", "prepare_kbit": True})


def test_the_trainer_of_transformers_4_takes_version_1() -> None:
    def waits(version: str) -> set[int]:
        job = job_of(parallel={"fsdp_version": None}, transformers_version=version)
        return {e.stream for e in build(job, CONFIG, [LENGTH], Card()).events if isinstance(e, Op)}

    assert waits("4.48.1") == {0, UNSHARD, POST_BACKWARD, PRE_UNSHARD, *FREED}
    assert job_of().parallel.fsdp_version == 1
    assert {2, 3} < waits("5.17.0")  # FSDP 2 gathers on the second stream it makes


@pytest.mark.parametrize(
    "values",
    [{}, LORA, {**LORA, "transformers_version": "4.48.1", "stack": "trl", "gradient_checkpointing": True}],
)
def test_layers_stand_for_others(values: dict[str, Any]) -> None:
    """The short tape, folded, is the long one."""
    job = job_of(**values)
    config = {**CONFIG, "num_hidden_layers": 7}
    program = fold_job(job, config, Card()).program
    long = build(job, config, [LENGTH] * 2, Card(), keeps_ops=False).events
    sizes = [event.nbytes for event in long if isinstance(event, Alloc)]
    first_two = program.sizes[: program.bounds[2]]
    assert [size for size in first_two if size >= 0] == sizes[: sum(size >= 0 for size in first_two)]


def test_litgpts_frozen_weights_have_gradients_beside_adapters() -> None:
    """They share their block's flat parameter; the embedding and the head are in the model's own, which is frozen."""
    values = {**LORA, "stack": "litgpt", "grad_accum": 2, "gradient_checkpointing": True}
    events = events_of(steps=1, **values)
    second = [place for place, e in enumerate(events) if isinstance(e, Begin) and e.phase is Phase.FORWARD][1]
    whole = bytes_of(held(events[:second], Phase.OPTIMIZER, 99), Role.GRADIENTS)
    adapters = 8 * WIDTH + 8 * WIDTH
    assert whole == 2 * LAYERS * (LAYER + adapters)


def test_fsdp_qlora_without_sharding_keeps_all() -> None:
    values = {**LORA, "stack": "fsdp_qlora", "parallel": {"data": "ddp"}}
    assert program_of(job_of(**values)).__name__.endswith("fsdp_qlora")
    lora = {**LORA["lora"], "adapter_dtype": "bfloat16"}  # type: ignore[dict-item]
    events = events_of(**{**values, "lora": lora})
    assert not gathers(events)
    blocks = held(events, Phase.FORWARD, 1)
    assert bytes_of(blocks, Role.WEIGHTS) > 2 * (LAYERS * LAYER + ROOT)


def test_words_of_gptqmodel_are_buffers_which_every_rank_holds_whole() -> None:
    """The MLP's three weights of each layer, half a byte a value; nothing else of this model is as large."""
    packed = {"method": "qlora", "quantization": {"format": "gptq"}, "weights_dtype": "float32"}
    events = events_of(**packed, autocast="bfloat16", lora={"rank": 8, "targets": ["q_proj"]})
    whole = [block for block in held(events, Phase.FORWARD, 1) if block.nbytes == WIDTH * INNER // 2]
    assert len(whole) == 3 * CONFIG["num_hidden_layers"]
