"""A plain loop's logits are found by the loss that is taken of them, whatever its model is called."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Role
from tunecast.tape.trace.run import trace_script

PLAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.GELU(), nn.Linear(64, 500, bias=False)).cuda().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(1):
    scores = model(torch.ones(40, 32, device="cuda", dtype=torch.bfloat16)).float() / 2
    nn.functional.cross_entropy(scores, torch.ones(40, dtype=torch.int64, device="cuda")).backward()
    optimizer.step()
"""
LOGITS = 40 * 500


def test_logits_of_a_plain_loop(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    tape, _ = trace_script(str(script), [], Card())
    found = Counter(
        (e.nbytes // LOGITS, e.role) for e in tape.events if isinstance(e, Alloc) and e.nbytes % LOGITS == 0
    )
    forward, backward = 3, 3
    # float32: the cast, what is divided, log-softmax; the gradients of log-softmax, of its argument, of the division
    assert found[4, Role.LOGITS_AND_LOSS] == forward + backward
    assert found[2, Role.LOGITS_AND_LOSS] == 2, "as the head made them, and the gradient it takes"
    others = [e for e in tape.events if isinstance(e, Alloc) and e.nbytes == 40 * 64 * 2]
    assert others and not any(e.role is Role.LOGITS_AND_LOSS for e in others), "what the layer before keeps"
