"""Replicas on paper: buckets, and gradients that are there twice."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT32
from tunecast.tape.build.job_runs import build
from tunecast.tape.build.machine import Detail, Machine
from tunecast.tape.build.sharding.ddp import BUCKET, FIRST_BUCKET, bucketed
from tunecast.tape.build.sharding.scheme import in_whole_model
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Op, Role
from tunecast.tape.shorten import Rhythm, as_they_are
from tunecast.units import MIB

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
ELEMENTS = 512 * 64 * 2 + 64 + 2 * (64 * 64 * 2 + 32 * 64 * 2 + 160 * 64 * 3 + 64 * 2)


def tensors(machine: Machine, *mib: float, dtype: Any = FLOAT32) -> list[Tensor]:
    return [machine.tensor((int(size * MIB) // dtype.itemsize,), dtype) for size in mib]


def sizes(buckets: list[list[Tensor]]) -> list[float]:
    return [sum(tensor.nbytes for tensor in bucket) / MIB for bucket in buckets]


def test_a_bucket_closes_when_it_has_reached_its_size() -> None:
    """1 MiB the first, 25 MiB the others; a tensor is never cut."""
    machine = Machine(Card())
    found = bucketed(tensors(machine, 0.5, 0.75, 20, 4, 2, 30, 1), [FIRST_BUCKET, BUCKET])
    assert sizes(found) == [1.25, 26, 30, 1]


def test_dtypes_have_buckets_of_their_own() -> None:
    machine = Machine(Card())
    mixed = [*tensors(machine, 2), *tensors(machine, 2, dtype=BFLOAT16), *tensors(machine, 3)]
    assert [(b[0].dtype, sum(t.nbytes for t in b) / MIB) for b in bucketed(mixed, [BUCKET])] == [
        (FLOAT32, 5), (BFLOAT16, 2),
    ]  # fmt: skip


def test_layers_that_repeat_come_as_often_as_they_do() -> None:
    machine = Machine(Card(), detail=Detail(standing=as_they_are(Rhythm(1, 1, 5))))
    found = []
    for module in ("embed", "layers.0.q", "layers.1.q", "layers.1.k", "layers.2.q", "head"):
        with machine.within(module):
            found.append(machine.tensor((1,), FLOAT32))
    names = [machine.blocks[t.storage.block].module for t in in_whole_model(machine, found)]
    assert names == ["embed", "layers.0.q", *["layers.1.q", "layers.1.k"] * 3, "layers.2.q", "head"]


@pytest.mark.parametrize("recomputed", [True, False])
def test_every_gradient_is_summed_once_a_step(recomputed: bool) -> None:
    job = job_from_dict(
        {
            "model": "small", "weights_dtype": "bfloat16", "seq_len": 32, "micro_batch": 1, "hardware": {"gpus": 4},
            "gradient_checkpointing": recomputed, "grad_accum": 3,
        }
    )  # fmt: skip
    steps = build(job, CONFIG, [32, 32], Card()).steps()
    for step in (0, 1):
        sums = [e for e in steps[step] if isinstance(e, Op) and e.name == "all_reduce"]
        assert sum(op.read_bytes for op in sums) == 2 * ELEMENTS
        assert {op.shapes[1] for op in sums} == {(4,)} and {op.group for op in sums} == {"data"}
        assert 0 not in {op.stream for op in sums}
    made = [
        e.nbytes for step in (-1, 1) for e in steps[step]
        if isinstance(e, Alloc) and e.module == "DistributedDataParallel" and e.role is Role.GRADIENTS
    ]  # fmt: skip
    whole = [2 * ELEMENTS] if not recomputed else [2 * ELEMENTS] * 2  # without find_unused they are made anew
    assert sum(size for size in made if size > 1000) == sum(whole)


def test_logits_are_copied_where_unused_parameters_are_looked_for() -> None:
    """`_DDPSink`: 32 tokens of 512 words in bf16."""
    job = {"model": "small", "weights_dtype": "bfloat16", "seq_len": 32, "micro_batch": 1, "hardware": {"gpus": 2}}
    copies = []
    for recomputed in (False, True):
        tape = build(job_from_dict({**job, "gradient_checkpointing": recomputed}), CONFIG, [32], Card())
        clones = [e for e in tape.ops() if e.name == "clone" and e.module == "DistributedDataParallel"]
        copies.append([op.written_bytes for op in clones])
    assert copies == [[4, 32 * 512 * 2], []]
