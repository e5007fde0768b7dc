"""Recurrent layers and convolutions as cuDNN runs them: what is in its source to the byte, the rest as a guess."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Phase, Role, Tape
from tunecast.tape.trace.run import trace_script

LOOP = """
import torch
from torch import nn
{made}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    {used}.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
F32 = 4


def traced(folder: Path, made: str, used: str) -> Tape:
    script = folder / "train.py"
    script.write_text(LOOP.format(made=made, used=used))
    tape, answer = trace_script(str(script), [], Card())
    assert (answer.steps, answer.error) == (2, None)
    return tape


def blocks(tape: Tape, phase: Phase, step: int = 1) -> Counter[int]:
    found: Counter[int] = Counter()
    now = Begin(Phase.LOAD)
    for event in tape.events:
        if isinstance(event, Begin):
            now = event
        elif isinstance(event, Alloc) and now == (phase, step):
            found[event.nbytes] += 1
    return found


def test_an_lstm(tmp_path: Path) -> None:
    tape = traced(tmp_path, "model = nn.LSTM(64, 32).cuda()", "model(torch.ones(10, 4, 64, device='cuda'))[0]")
    # four gates of 32, each with a row of 64 inputs, 32 states and two biases
    whole = 4 * 32 * (64 + 32 + 2) * F32
    weights = [e.nbytes for e in tape.events if isinstance(e, Alloc) and e.role is Role.WEIGHTS]
    gradients = [e.nbytes for e in tape.events if isinstance(e, Alloc) and e.role is Role.GRADIENTS]
    assert (weights[-1], gradients) == (whole, [whole, whole]), "one buffer for all of them"
    rows = 10 * 4
    forward = blocks(tape, Phase.FORWARD)
    assert forward[rows * 32 * F32] == 1, "the output"
    assert forward[rows * 4 * 32 * F32] == 1, "the gates' inputs, while it runs"
    assert forward[rows * 6 * 32 * F32] == 1, "gates, cell and its tanh, until the backward pass"
    assert any("cuDNN keeps and borrows for a recurrent layer" in guess for guess in tape.guesses)


def test_packed_rows_and_gru(tmp_path: Path) -> None:
    tape = traced(
        tmp_path,
        "from torch.nn.utils.rnn import pack_padded_sequence as pack, pad_packed_sequence as pad\n"
        "model = nn.GRU(16, 8, bidirectional=True).cuda()",
        "pad(model(pack(torch.ones(9, 3, 16, device='cuda'), torch.tensor([9, 5, 2])))[0])[0]",
    )
    rows = 9 + 5 + 2
    forward = blocks(tape, Phase.FORWARD)
    assert forward[rows * 2 * 8 * F32] == 1, "the output of both directions, without padding"
    assert forward[rows * 2 * 3 * 8 * F32] == 2, "three gates: borrowed, and kept"


@pytest.mark.parametrize(
    ("layer", "is_guess"),
    [("nn.Conv2d(3, 8, 3, padding=1)", True), ("nn.Conv2d(8, 8, 3, groups=8)", False), ("nn.Conv2d(3, 8, 4, 4)", True)],
)
def test_convolutions(tmp_path: Path, layer: str, is_guess: bool) -> None:
    channels = 8 if "groups" in layer else 3
    tape = traced(tmp_path, f"model = {layer}.cuda()", f"model(torch.ones(2, {channels}, 16, 16, device='cuda'))")
    assert any("cuDNN" in guess for guess in tape.guesses) is is_guess


def test_patches_of_frozen_weights_were_measured(tmp_path: Path) -> None:
    made = "cut, model = nn.Conv2d(3, 8, 4, 4).cuda().requires_grad_(False), nn.Linear(16, 4).cuda()"
    tape = traced(tmp_path, made, "model(cut(torch.ones(2, 3, 16, 16, device='cuda')).flatten(2))")
    assert not tape.guesses and any("cuts images into patches" in text for text in tape.assumptions)
