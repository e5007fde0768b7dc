"""FSDP2 on paper: what a reader can add up. That it is torch's is tests/trace/test_sharding.py's business."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import replay
from tunecast.tape.build.job_runs import build, fold_job, whole_tape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, bring
from tunecast.tape.build.sharding.shards import Shard
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Event, Free, Op, Phase, Role, Tape
from tunecast.tape.program import program
from tunecast.tape.shorten import steps_of

WIDTH, INNER, WORDS, LAYERS = 64, 160, 512, 2
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
LAYER = [(64, 64), (32, 64), (32, 64), (64, 64), (160, 64), (160, 64), (64, 160), (64, 1), (64, 1)]
"""(rows, columns): queries, keys, values, output; gate, up, down; two norms."""
MODEL = [(WORDS, WIDTH), *LAYER * LAYERS, (WIDTH, 1), (WORDS, WIDTH)]
BASE: dict[str, Any] = {
    "model": "small", "weights_dtype": "bfloat16", "autocast": "bfloat16", "seq_len": 32, "micro_batch": 1,
    "optimizer": "adamw_torch", "gradient_checkpointing": False,
}  # fmt: skip


def tape_of(gpus: int, nodes: int = 1, data: str = "fsdp", parallel: dict[str, Any] | None = None, **job: Any) -> Tape:
    spread = {"hardware": {"gpus": gpus, "nodes": nodes}, "parallel": {"data": data, **(parallel or {})}}
    return build(job_from_dict(BASE | spread | job), CONFIG, [32, 32], Card())


def held_at_end(tape: Tape, role: Role) -> int:
    """Bytes of a role that live when the last step is over."""
    alive = {event.block: event for event in tape.events if isinstance(event, Alloc)}
    for event in tape.events:
        if isinstance(event, Free):
            del alive[event.block]
    return sum(block.nbytes for block in alive.values() if block.role is role)


def collectives(events: Iterable[Event], name: str) -> list[Op]:
    return [event for event in events if isinstance(event, Op) and event.name == name]


def padded(ranks: int) -> int:
    """Elements of the first rank's parts."""
    return sum(-(-rows // ranks) * columns for rows, columns in MODEL)


@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 64, 1000])
@pytest.mark.parametrize("rows", [1, 5, 64, 100])
def test_parts_are_the_parameter_and_its_padding(rows: int, ranks: int) -> None:
    machine = Machine(Card())
    linear = Linear(machine, 3, rows)
    linear.name_all("linear")
    bring(linear.weight, "linear")
    shard = Shard(linear.weight, [(linear, "weight")], ranks, on_host=False)
    padding = shard.padded_numel * ranks - rows * 3
    assert 0 <= padding < ranks * 3
    assert padding % 3 == 0
    assert linear.weight is shard.part and linear.own["weight"] is shard.part


@pytest.mark.parametrize("ranks", [2, 7, 8])
def test_weights_and_moments_are_parts(ranks: int) -> None:
    """float32 masters; AdamW has two moments. Rotary tables, 8 floats twice, are nobody's part."""
    tape = tape_of(ranks)
    assert held_at_end(tape, Role.WEIGHTS) == 4 * padded(ranks) + 2 * 8 * 4
    assert held_at_end(tape, Role.OPTIMIZER) == 8 * padded(ranks)


def test_a_step_gathers_all_but_the_head_twice_and_scatters_all_once() -> None:
    """In bf16: forward and backward of each unit; the last norm and the head stay whole between them."""
    step = tape_of(8).steps()[1]
    kept = (WIDTH // 8 + WORDS // 8 * WIDTH) * 2
    assert sum(op.read_bytes for op in collectives(step, "all_gather")) == 2 * 2 * padded(8) - kept
    assert sum(op.written_bytes for op in collectives(step, "reduce_scatter")) == 2 * padded(8)
    assert all(op.written_bytes == 8 * op.read_bytes for op in collectives(step, "all_gather"))
    assert {op.group for op in collectives(step, "all_gather")} == {"shard"}


def test_weights_that_stay_are_gathered_once() -> None:
    step = tape_of(8, parallel={"reshard_after_forward": False}).steps()[1]
    assert sum(op.read_bytes for op in collectives(step, "all_gather")) == 2 * padded(8)


def test_replicas_of_shards_sum_what_is_scattered() -> None:
    """2 machines of 4: parts of a fourth, and their gradients summed over 2."""
    tape = tape_of(4, nodes=2, data="hsdp")
    assert held_at_end(tape, Role.WEIGHTS) == 4 * padded(4) + 2 * 8 * 4
    sums = [op for op in collectives(tape.steps()[1], "all_reduce") if op.group == "replicate"]
    assert sum(op.read_bytes for op in sums) == 2 * padded(4)
    assert {op.shapes[1] for op in sums} == {(2,)}


def test_gradients_wait_whole_between_micro_batches() -> None:
    """Not scattered until the last one: then as much as with one."""
    once, twice = tape_of(8).steps()[1], tape_of(8, grad_accum=2).steps()[1]
    assert len(collectives(twice, "reduce_scatter")) == len(collectives(once, "reduce_scatter"))
    assert len(collectives(twice, "all_gather")) == 2 * len(collectives(once, "all_gather"))


def test_synced_gradients_are_scattered_after_each_micro_batch_and_wait_cut() -> None:
    """Three micro-batches: three times as much is scattered; the wait between them is of parts."""
    once = tape_of(8).steps()[1]
    waiting, synced = (tape_of(8, grad_accum=3, parallel={"sync_each_batch": value}) for value in (False, True))
    step = synced.steps()[1]
    assert len(collectives(step, "reduce_scatter")) == 3 * len(collectives(once, "reduce_scatter"))
    assert len(collectives(step, "all_gather")) == 3 * len(collectives(once, "all_gather"))
    wait, cut = (replay(tape, AllocatorSettings()).allocated_bytes for tape in (waiting, synced))
    assert cut < wait
    assert held_at_end(synced, Role.GRADIENTS) == held_at_end(waiting, Role.GRADIENTS)


def test_offloaded_parts_leave_the_card_alone() -> None:
    tape = tape_of(8, parallel={"offload": "parameters"})
    assert held_at_end(tape, Role.WEIGHTS) == 2 * 8 * 4
    assert held_at_end(tape, Role.OPTIMIZER) == held_at_end(tape, Role.GRADIENTS) == 0
    came = [event for event in tape.steps()[1] if isinstance(event, Op) and event.name == "copy_from_host"]
    assert sum(op.written_bytes for op in came) == 4 * (2 * padded(8) - (WIDTH // 8 + WORDS // 8 * WIDTH))
    [step] = [event for event in tape.steps()[1] if isinstance(event, Op) and event.name == "host_optimizer_loop"]
    assert (step.read_bytes, step.written_bytes) == (16 * padded(8), 12 * padded(8))


def test_more_ranks_need_less() -> None:
    peaks = [replay(tape_of(ranks), AllocatorSettings()).allocated_bytes for ranks in (2, 8, 64)]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 3


def test_every_scatter_waits_for_the_gradients_and_the_step_for_every_scatter() -> None:
    """On the tape each collective's stream is told to wait for the default one, and the default one for it."""
    step = tape_of(8).steps()[1]
    ops = [event for event in step if isinstance(event, Op)]
    for place, op in enumerate(ops):
        if op.name == "reduce_scatter":
            before = [o for o in ops[:place] if o.stream == op.stream][-2:]
            assert any(o.name == "wait" and o.shapes == ((0,),) for o in before)
    last = max(place for place, op in enumerate(ops) if op.name == "reduce_scatter")
    assert any(op.name == "wait" and op.stream == 0 and op.shapes == ((3,),) for op in ops[last:])


FOLDED: dict[str, dict[str, Any]] = {
    "replicas": {"hardware": {"gpus": 8}},
    "replicas-rebuilt": {"hardware": {"gpus": 8}, "gradient_checkpointing": True},
    "fsdp": {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp"}},
    "fsdp-recomputed": {"hardware": {"gpus": 7}, "parallel": {"data": "fsdp"}, "gradient_checkpointing": True},
    "fsdp-accumulated": {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp"}, "grad_accum": 2},
    "fsdp-synced": {
        "hardware": {"gpus": 8}, "parallel": {"data": "fsdp", "sync_each_batch": True}, "grad_accum": 3,
    },
    "fsdp-lora": {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp"}, "method": "lora"},
    "fsdp-qlora": {
        "hardware": {"gpus": 8}, "parallel": {"data": "fsdp"}, "method": "qlora", "gradient_checkpointing": True,
    },
    "hsdp": {"hardware": {"gpus": 4, "nodes": 2}, "parallel": {"data": "hsdp"}},
    "offloaded": {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp", "offload": "parameters"}},
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_a_folded_run_is_the_whole_one(name: str) -> None:
    """Prefetching crosses layers: one frees what its neighbour made. Streams are carried along."""
    job, config = job_from_dict(BASE | FOLDED[name]), CONFIG | {"num_hidden_layers": 9}
    folded, whole = fold_job(job, config, Card()), build(job, config, steps_of(job), Card(), keeps_ops=False)
    assert list(folded.program.written_out()) == list(program(whole).written_out())
    assert folded.program.streams is None or set(folded.program.streams) <= {0, 1, 3, 4}


def test_written_out_layer_by_layer_it_is_the_same() -> None:
    job, config = job_from_dict(BASE | FOLDED["fsdp"]), CONFIG | {"num_hidden_layers": 9}
    extended, whole = whole_tape(job, config, Card()), build(job, config, steps_of(job), Card())
    sizes = [[(e.nbytes, e.stream) for e in tape.events if isinstance(e, Alloc)] for tape in (extended, whole)]
    assert sizes[0] == sizes[1]
    phases = {event.phase for event in whole.events if hasattr(event, "phase")}
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER} <= phases
