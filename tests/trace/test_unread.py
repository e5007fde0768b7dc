"""A branch by a number nobody knows is a guess; printing, averaging and testing it for NaN are not."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tunecast.tape.card import Card
from tunecast.tape.trace.run import trace_script

LOOP = """
import json, math, statistics, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
total, best = 0.0, 5.0
loss = model(torch.ones(2, 8, device="cuda")).sum()
loss.backward()
optimizer.step()
value = loss.item()
total += round(value / 3, 4)
json.dumps({"loss": value}), f"{value:.3f}", math.isnan(value), value != value, value == float("inf"), max([value])
statistics.mean([value, total])
assert isinstance(total, float)
"""


def guesses(text: str, folder: Path) -> tuple[str, ...]:
    script = folder / "train.py"
    script.write_text(text)
    tape, answer = trace_script(str(script), [], Card())
    assert (answer.steps, answer.error) == (1, None)
    return tape.guesses


def test_a_number_that_is_told_is_no_guess(tmp_path: Path) -> None:
    assert guesses(LOOP, tmp_path) == ()


def test_a_number_that_decides_is_a_guess(tmp_path: Path) -> None:
    found = guesses(f"{LOOP}if total / 2 < best:\n    best = total\n", tmp_path)
    assert found == ("a number compared at train.py:14 is not known; taken as 0.16665",)


def test_a_tensor_that_decides_is_one_too(tmp_path: Path) -> None:
    """`assert` goes on; a loop until a number is small enough ends."""
    decides = "assert loss < 1e6 and not loss > 100\nwhile loss > 1e-6:\n    loss = loss / 2\n"
    assert guesses(LOOP + decides, tmp_path) == (
        "a number compared at train.py:14 is not known; taken as 1 (2 times)",
        "a number compared at train.py:15 is not known; taken as 1",
    )
