"""Tensor parallelism on paper: what is split, what is sent, and when."""

from __future__ import annotations

import pytest

from tunecast.errors import UsageError
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import backward, record
from tunecast.tape.build.dtypes import BFLOAT16, INT64
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.modules import Embedding, Linear, Module, bring
from tunecast.tape.build.sharding.tensor import TensorParallel
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.card import Card
from tunecast.tape.op import COLLECTIVES, Op, Phase

BATCH, LENGTH, WIDTH, INNER, WORDS, RANKS = 2, 8, 32, 64, 128, 4
WHOLE = BATCH * LENGTH * WIDTH
"""Elements of a layer's input."""


class Mlp(Module):
    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.gate, self.up, self.down = (
            Linear(machine, WIDTH, INNER), Linear(machine, WIDTH, INNER), Linear(machine, INNER, WIDTH),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


def trained(sequence: bool) -> tuple[list[tuple[str, int]], list[tuple[str, int]], Mlp]:
    """Collectives of an MLP's forward and backward pass, with the elements each rank sends."""
    machine = Machine(Card(), Setup(BFLOAT16))
    mlp = Mlp(machine)
    split = TensorParallel(machine, RANKS)
    if sequence:
        split.takes_sequence(mlp)
        for linear in (mlp.gate, mlp.up):
            split.columns(linear)
    else:
        for linear in (mlp.gate, mlp.up):
            split.columns(linear, sequence=False)
    split.rows(mlp.down, sequence=sequence)
    for module in mlp.modules():
        for tensor in module.own.values():
            bring(tensor, "")
    machine.phase, machine.in_forward = Phase.FORWARD, True
    x = machine.tensor((BATCH, LENGTH // RANKS if sequence else LENGTH, WIDTH), BFLOAT16)
    x.requires_grad = True
    out = mlp(x)
    assert out.shape == x.shape
    forward = sent(machine)
    loss = loss_of(out)
    machine.events.clear()
    backward(loss)
    return forward, sent(machine), mlp


def loss_of(out: Tensor) -> Tensor:
    """A number whose gradient is as large as `out`."""
    total = out.machine.run("sum", (out,), (), out.dtype)
    return record(total, (out,), lambda node, gradients: (gradients[0].expand(*out.shape),))


def sent(machine: Machine) -> list[tuple[str, int]]:
    return [(e.name, e.shapes[0][0]) for e in machine.events if isinstance(e, Op) and e.name in COLLECTIVES]


def test_weights_are_split_by_columns_and_rows() -> None:
    _, _, mlp = trained(sequence=True)
    assert mlp.gate.weight.shape == mlp.up.weight.shape == (INNER // RANKS, WIDTH)
    assert mlp.down.weight.shape == (WIDTH, INNER // RANKS)


def test_a_sequence_in_parts_is_gathered_before_and_summed_in_parts_behind() -> None:
    forward, back, _ = trained(sequence=True)
    assert forward == [("all_gather", WHOLE // RANKS), ("reduce_scatter", WHOLE)]
    assert back == forward


def test_a_whole_sequence_is_summed_once_each_way_and_input() -> None:
    forward, back, _ = trained(sequence=False)
    assert forward == [("all_reduce", WHOLE)]
    assert back == [("all_reduce", WHOLE)] * 2


def test_an_embedding_holds_its_own_words() -> None:
    machine = Machine(Card(), Setup(BFLOAT16))
    embedding = Embedding(machine, WORDS, WIDTH)
    TensorParallel(machine, RANKS).by_words(embedding, sequence=True)
    assert embedding.weight.shape == (WORDS // RANKS, WIDTH)
    bring(embedding.weight, "")
    out = embedding(machine.tensor((BATCH, LENGTH), INT64))
    assert out.shape == (BATCH, LENGTH // RANKS, WIDTH)
    assert sent(machine) == [("reduce_scatter", WHOLE)]


def test_a_loss_of_split_logits_exchanges_a_number_a_token() -> None:
    machine = Machine(Card(), Setup(BFLOAT16))
    split = TensorParallel(machine, RANKS)
    logits = machine.run("_to_copy", (), (BATCH * LENGTH, WORDS // RANKS), BFLOAT16)
    loss = split.cross_entropy(logits, machine.tensor((BATCH * LENGTH,), INT64))
    assert loss.shape == ()
    assert sent(machine) == [("all_reduce", BATCH * LENGTH)] * 3


def test_what_does_not_divide_is_refused() -> None:
    machine = Machine(Card(), Setup(BFLOAT16))
    with pytest.raises(UsageError, match="cannot be split over 3"):
        TensorParallel(machine, 3).columns(Linear(machine, WIDTH, INNER))
