"""Several cards in one process: whose blocks are whose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tunecast.tape.card import Card
from tunecast.tape.cards import tapes_by_card
from tunecast.tape.op import Alloc, Begin, Phase, Role, Tape
from tunecast.tape.trace.run import trace_script

SPLIT = """
import torch
first = torch.nn.Linear(256, 512, bias=False).to("cuda:0")
with torch.cuda.device(1):
    second = torch.nn.Linear(512, 128, bias=False).cuda()
assert torch.cuda.device_count() == 2 and torch.cuda.current_device() == 0 and second.weight.device.index == 1
assert torch.cuda.memory_allocated(0) == 256 * 512 * 4 and torch.cuda.memory_allocated("cuda:1") == 512 * 128 * 4
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1, momentum=0.9)
for _ in range(2):
    hidden = first(torch.ones(64, 256, device="cuda:0"))
    second(hidden.to("cuda:1")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert torch.cuda.max_memory_allocated(1) > torch.cuda.memory_allocated(1)
"""

REPLICAS = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 2048, bias=False), torch.nn.Linear(2048, 512, bias=False))
model = torch.nn.DataParallel(model.cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    out = model(torch.ones(64, 1024).cuda())
    assert out.shape == (64, 512) and out.device.index == 0
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
F32 = 4


def traced(text: str, folder: Path) -> tuple[dict[int, Tape], Sequence[str]]:
    script = folder / "train.py"
    script.write_text(text)
    tape, answer = trace_script(str(script), [], Card(), gpus=2)
    assert (answer.steps, answer.error) == (2, None)
    return tapes_by_card(tape), tape.guesses


def sizes(tape: Tape, role: Role) -> Counter[int]:
    return Counter(event.nbytes for event in tape.events if isinstance(event, Alloc) and event.role is role)


def in_step(tape: Tape, step: int) -> list[int]:
    found, now = [], Begin(Phase.LOAD)
    for event in tape.events:
        if isinstance(event, Begin):
            now = event
        elif isinstance(event, Alloc) and now.phase is not Phase.LOAD and now.step == step:
            found.append(event.nbytes)
    return found


def test_layers_on_two_cards(tmp_path: Path) -> None:
    cards, guesses = traced(SPLIT, tmp_path)
    assert list(cards) == [0, 1] and not guesses
    for card, weight_bytes in ((0, 256 * 512 * F32), (1, 512 * 128 * F32)):
        assert sizes(cards[card], Role.WEIGHTS) == {weight_bytes: 1}
        assert sizes(cards[card], Role.GRADIENTS) == {weight_bytes: 2}
        assert sizes(cards[card], Role.OPTIMIZER) == {weight_bytes: 1}
    hidden_bytes, out_bytes = 64 * 512 * F32, 64 * 128 * F32
    first, second = in_step(cards[0], 1), in_step(cards[1], 1)
    assert first.count(hidden_bytes) == 2, "the hidden states, and their gradient come back"
    assert second.count(hidden_bytes) == 2, "the copy, and its gradient"
    assert out_bytes in second and out_bytes not in first
    assert all(event.stream < 10 for tape in cards.values() for event in tape.events if isinstance(event, Alloc))


def test_data_parallel(tmp_path: Path) -> None:
    cards, guesses = traced(REPLICAS, tmp_path)
    assert any("nn.DataParallel follows its source" in guess for guess in guesses)
    up, down = 1024 * 2048 * F32, 2048 * 512 * F32  # 8 MiB and 4 MiB: together past the 10 MiB of a buffer
    second = in_step(cards[1], 1)
    assert second.count(up + down) == 1, "the weights come in one block: the last to join goes beyond the limit"
    assert (second.count(up), second.count(down)) == (1, 1), "gradients, which go one by one: nothing beyond the limit"
    assert second.count(64 // 2 * 2048 * F32) == 2, "half of the rows: their hidden states, and the gradient of these"
    assert sizes(cards[1], Role.WEIGHTS) == {up + down: 2} and not sizes(cards[1], Role.OPTIMIZER)
    first = in_step(cards[0], 1)
    assert first.count(64 * 512 * F32) >= 1, "the outputs are gathered here"
    assert first.count(up + down) == 1, "weights laid end to end"
    assert (first.count(up), first.count(down)) == (2, 2), "gradients of this replica, and of both"
