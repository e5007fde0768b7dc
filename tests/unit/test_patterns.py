"""One structure for many sizes, lengths and cards: what it gives is what building anew gives, to the byte."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

from tunecast.hardware.catalog import gpus
from tunecast.job import Job, job_from_dict
from tunecast.prediction.modelled import card_of
from tunecast.tape.build.job_runs import SHARED, Builder, fold_job, operations_of, paper_run
from tunecast.tape.build.micro_batches import micro_batch_structures
from tunecast.tape.build.request import BuildRequest, Contents, StructureKey, structure_key
from tunecast.tape.card import Card
from tunecast.tape.op import Op, Phase
from tunecast.tape.step import Step, StepSection
from tunecast.tape.structure import Structure
from tunecast.tape.timed import steps_of_fold, timed_steps

pytestmark = pytest.mark.whole

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 3001, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
BASE = {"model": "small", "weights_dtype": "bfloat16", "seq_len": 512, "micro_batch": 2, "grad_accum": 1}
LORA = {"method": "lora", "lora": {"targets": "all-linear", "rank": 8, "dropout": 0.05}}
SHARDED = {"hardware": {"gpus": 4}, "parallel": {"data": "fsdp"}}
JOBS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": None, "gradient_checkpointing": True},
    "lora": LORA,
    "qlora": {**LORA, "method": "qlora", "quantization": {"format": "nf4"}},
    "liger": {**LORA, "kernels": ["liger"]},
    "short rows": {**LORA, "seq_len": 48, "micro_batch": 1},
    "fsdp": {"method": "full", **SHARDED},
    "fsdp lora": {**LORA, **SHARDED},
    "ddp": {**LORA, "hardware": {"gpus": 2}, "grad_accum": 3},
    "trl": {**LORA, "stack": "trl"},
    "unsloth": {**LORA, "stack": "unsloth", "lora": {"rank": 8, "dropout": 0.0}},
}


def folded(job: Job, card: Card, builder: Builder = SHARED) -> tuple[Any, Step]:
    """From the structures there are, or a new one."""
    made = fold_job(job, CONFIG, card, keeps_ops=True, builder=builder)
    (step,) = steps_of_fold(made, job.grad_accum).values()
    return made.program, step


def anew(job: Job, card: Card, length: int | None = None) -> tuple[Any, Step]:
    """Of plain numbers."""
    made = paper_run(BuildRequest(job, CONFIG, card, length or job.seq_len, Contents.BOTH))
    assert made.operations is not None
    return made.program, made.operations.pattern.step(1, job.grad_accum)


def structures(builder: Builder) -> list[Structure]:
    """Of the one key it was asked for."""
    (key,) = builder.keys
    return builder.structures(key)


def key_of(job: Job, **changed: Any) -> StructureKey:
    return structure_key(BuildRequest(job, CONFIG | changed, Card(), job.seq_len, Contents.BOTH))


@pytest.mark.parametrize("name", ["full", "qlora", "liger", "fsdp lora"])
def test_a_structure_serves_every_card(name: str) -> None:
    """Its program and its operations on each card of the catalogue, and far fewer structures than cards."""
    builder = Builder()
    job, cards = job_from_dict(BASE | JOBS[name]), [card_of(gpu) for gpu in gpus().values()]
    plain: dict[Any, Any] = {}
    for card in cards:
        told = card.capability, card.sm_count  # the rest nobody asks for here
        if told not in plain:
            plain[told] = anew(job, card)
        assert folded(job, card, builder) == plain[told], card
    assert not builder.fallbacks
    made = structures(builder)
    assert 1 < len(made) <= len(cards) / 3


def test_cards_of_one_generation_share_a_structure() -> None:
    builder = Builder()
    job = job_from_dict(BASE | LORA)
    for sms in (114, 132):
        folded(job, Card(sm_count=sms, total_bytes=sms << 30), builder)
    assert len(structures(builder)) == 1
    folded(job, Card(capability=(8, 0), sm_count=108), builder)  # no cuDNN attention, another workspace
    assert len(structures(builder)) == 2


@pytest.mark.parametrize("name", ["full", "lora", "qlora", "ddp", "trl"])
def test_each_length_s_step_is_that_of_a_run_with_all_of_them(name: str) -> None:
    """However the lengths before it were."""
    job = job_from_dict(BASE | JOBS[name] | {"lengths": [96, 96, 200, 333, 512]})
    steps = timed_steps(job, CONFIG, Card())
    mixed = steps_of_fold(fold_job(job, CONFIG, Card(), keeps_ops=True), job.grad_accum)
    assert list(steps) == list(mixed) == [96, 200, 333, 512]
    assert steps == mixed


@pytest.mark.parametrize("name", ["lora", "fsdp", "unsloth"])
def test_rows_may_be_shorter_than_the_longest(name: str) -> None:
    job = job_from_dict(BASE | JOBS[name])
    for length in (512, 100, 256):
        short = operations_of(job, CONFIG, Card(), length)
        assert short.lengths[1] == length
        assert short.pattern.step(1, 1, short.values) == anew(job, Card(), length)[1]


@pytest.mark.parametrize("name", ["liger", "fsdp", "fsdp lora", "ddp"])
def test_a_structure_serves_every_number_of_cards(name: str) -> None:
    """And with Liger's head, whose chunks grow with the batch, every batch that makes as many chunks."""
    builder = Builder()
    for gpus_, nodes, batch in ((2, 1, 2), (4, 1, 4), (8, 2, 8)):
        change = {"hardware": {"gpus": gpus_, "nodes": nodes}, "micro_batch": batch}
        job = job_from_dict(BASE | JOBS[name] | change)
        assert folded(job, Card(), builder) == anew(job, Card()), change
    assert not builder.fallbacks
    assert len(structures(builder)) < 3


class Unread:
    """What nobody may look at, but for some fields."""

    def __init__(self, whole: Any, *fields: str) -> None:
        for field in fields:
            setattr(self, field, getattr(whole, field))


@pytest.mark.parametrize("name", sorted(JOBS.keys() - {"trl", "unsloth"}))  # which check the job as a whole once more
def test_what_a_structure_s_key_leaves_out_is_not_read(name: str) -> None:
    job = job_from_dict(BASE | JOBS[name])
    blind = copy(job)
    for field, read in {"run": (), "data": ("packing", "has_lengths"), "hardware": ("gpus", "nodes")}.items():
        object.__setattr__(blind, field, Unread(getattr(job, field), *read))
    for field, other in {"id": "another", "allocator": "expandable_segments"}.items():
        object.__setattr__(blind, field, other)
    assert anew(blind, Card()) == anew(job, Card())


def test_jobs_that_run_otherwise_have_other_structures() -> None:
    job = job_from_dict(BASE | LORA)
    key = key_of(job)
    same: list[dict[str, Any]] = [{"micro_batch": 4}, {"seq_len": 96}, {"data": {"tokens": 10**6}}]
    for change in [*same, {"hardware": {"gpu": "l4-24gb"}}, {"lora": {**LORA["lora"], "rank": 64}}]:
        assert key_of(job_from_dict(BASE | LORA | change)) == key, change
    others: list[dict[str, Any]] = [{"grad_accum": 2}, {"optimizer": "sgd"}, {"hardware": {"gpus": 2}}]
    for change in [*others, {"data": {"packing": True}}]:
        assert key_of(job_from_dict(BASE | LORA | change)) != key, change
    assert key_of(job, vocab_size=3002) != key


@pytest.mark.parametrize("name", sorted(JOBS.keys() - {"unsloth"}))  # which needs plain numbers
def test_memory_is_served_by_what_was_built_for_time(name: str) -> None:
    """Operations are not in the program: with and without them it is the same."""
    job = job_from_dict(BASE | JOBS[name])
    alone = fold_job(job, CONFIG, Card(), builder=Builder())
    builder = Builder()
    assert fold_job(job, CONFIG, Card(), keeps_ops=True, builder=builder).program == alone.program
    assert fold_job(job, CONFIG, Card(), builder=builder).program == alone.program
    assert len(structures(builder)) == 1


def test_who_asks_once_is_given_numbers() -> None:
    job = job_from_dict(BASE | LORA)
    builder = Builder(symbolic=False)
    assert folded(job, Card(), builder) == anew(job, Card())
    assert not builder.keys


def test_structures_are_forgotten() -> None:
    builder = Builder(most_rows=1)
    for optimizer in ("sgd", "adamw_torch"):
        job = job_from_dict(BASE | LORA | {"optimizer": optimizer})
        assert folded(job, Card(), builder) == anew(job, Card())
    assert len(builder.keys) == 1


def test_what_was_just_built_is_forgotten_last() -> None:
    """However old the first structure of its key is: else a job's own batches would have none."""
    builder, other = Builder(most_rows=1), job_from_dict(BASE | LORA | {"optimizer": "sgd"})
    own = micro_batch_structures(job_from_dict(BASE | LORA), CONFIG, Card(), builder=builder)
    assert own is not None and own.of(2, 40) is not None
    builder._most_rows = 10**6
    folded(other, Card(), builder)
    builder._most_rows = 1
    assert own.of(1, 40) is not None  # one row is another structure
    assert len(builder.keys) == 1 and builder.keys[0].per_micro_batch


def test_a_job_that_is_refused_is_refused_for_what_it_is() -> None:
    """And the next one of its kind is not taken for one that cannot be built with symbols."""
    job = job_from_dict(BASE | {"method": "full", "matmul_dtype": "float4", "micro_batch": 4})
    builder = Builder()
    with pytest.raises(Exception, match="tensor cores"):
        folded(job, Card(), builder)
    (key,) = builder.keys
    assert not builder.needs_numbers(key) and not builder.fallbacks


def test_a_job_that_needs_numbers_is_built_of_them_and_counted() -> None:
    """Once it was tried with symbols in vain, it is not tried again; any other error is one of ours and is raised."""
    builder, job = Builder(), job_from_dict(BASE | {"method": "full", "compile": True})
    for _ in range(2):
        assert folded(job, Card(), builder) == anew(job, Card())
    assert sum(builder.fallbacks.values()) == 1 and next(iter(builder.fallbacks)).startswith("NumberNeeded")
    (key,) = builder.keys
    assert builder.needs_numbers(key) and not builder.structures(key)


# ---------------------------------------------------------------------------------------------------- the table


def product(module: str, flops: int = 8, **fields: Any) -> Op:
    return Op("mm", module, flops, 2, 2, 1, "bfloat16", **fields)


def test_a_step_s_table_has_each_operation_once() -> None:
    one, other, again = product("a"), product("b", 9), product("c")
    layer = (one, other, again)
    step = Step((StepSection(Phase.FORWARD, 3, layer), StepSection(Phase.BACKWARD, 2, (other, one)),
                 StepSection(Phase.FORWARD, 1, layer)))  # fmt: skip
    distinct, places, layout = step.table
    assert distinct == (one, other) and places == ((0, 1, 0), (1, 0), (0, 1, 0)) and places[0] is places[2]
    assert layout.turns == ((Phase.FORWARD, 3), (Phase.BACKWARD, 2), (Phase.FORWARD, 1))
    assert step.flops == 4 * 25 + 2 * 17 and step.kernels == 4 * 3 + 2 * 2
    assert step.model_flops == 4 * 25  # what is not the engine's in a backward pass is computed again


def test_steps_of_a_structure_share_their_layout() -> None:
    builder = Builder()
    steps = [folded(job_from_dict(BASE | LORA | {"micro_batch": batch}), Card(), builder)[1] for batch in (2, 4)]
    assert steps[0].table.layout is steps[1].table.layout
    assert steps[1].flops == pytest.approx(2 * steps[0].flops, rel=1e-4)  # but for the rotary table, which is as long
    plain = Step(steps[0].sections)
    assert plain == steps[0] and plain.table[:2] == steps[0].table[:2]
