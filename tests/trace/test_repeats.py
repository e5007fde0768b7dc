"""Operations made from the first of their kind are those that torch's own fake tensors make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.trace
SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import json, sys
import torch
from tunecast.tape.card import Card
from tunecast.tape.trace.recorder import run_plainly
from tunecast.tape.trace.ending import LEAVE
from tunecast.tape.trace.session import tracing

with tracing(Card()) as recorder:
    repeats = recorder.run_fake
    made = []

    def described(value):
        if isinstance(value, (tuple, list)):
            return [described(each) for each in value]
        if not isinstance(value, torch.Tensor):
            return repr(value)
        storage = value.untyped_storage()
        return [list(value.shape), value.stride(), value.storage_offset(), str(value.dtype), str(value.device),
                storage.nbytes(), value.requires_grad, value._is_view(), type(value).__name__]

    def run_and_note(func, args, kwargs):
        out = repeats(func, args, kwargs)
        if sys.argv[1] == "both" and func.namespace == "aten":
            plain = run_plainly(func, args, kwargs)
            shared = [[a.untyped_storage()._cdata == x.untyped_storage()._cdata for a in tensors(args)]
                      for x in tensors(out)]
            plainly = [[a.untyped_storage()._cdata == x.untyped_storage()._cdata for a in tensors(args)]
                       for x in tensors(plain)]
            made.append([str(func), [described(out), shared] == [described(plain), plainly]])
        return out

    def tensors(value):
        leaves = torch.utils._pytree.tree_flatten(value)[0]
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    recorder.run_fake = {"plain": run_plainly, "repeats": repeats, "both": run_and_note}[sys.argv[1]]
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device="cuda")
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    head = torch.nn.Linear(64, 100).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
    for step in range(4):
        with torch.autocast("cuda", torch.bfloat16):
            x = torch.ones(2, 7, 64, device="cuda")
            parts = model(x).chunk(2, -1)
            out = head(torch.cat([parts[1], -parts[0]], -1)[:, 1:].transpose(0, 1).contiguous())
            labels = torch.zeros(12, dtype=torch.long, device="cuda")
            loss = torch.nn.functional.cross_entropy(out.flatten(0, 1).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(x).std()
    values, places = out.float().sort(-1)
    complex = torch.view_as_complex(values.unflatten(-1, (50, 2))).conj() * 2
    print(json.dumps({"events": [repr(event) for event in recorder.tape({}).events], "made": made,
                      "known": len(repeats.__self__._known)}), flush=True)
LEAVE(0)
"""


def run(which: str) -> dict[str, list[str]]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    program = [sys.executable, "-c", PROGRAM, which]
    done = subprocess.run(program, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_tape_is_the_same() -> None:
    repeats, plain = run("repeats"), run("plain")
    assert len(plain["events"]) > 1000
    assert repeats["events"] == plain["events"]


def test_every_output_is_the_same() -> None:
    """Shapes, strides, offsets, devices, and whose storage it is."""
    made = run("both")["made"]
    assert len(made) > 1000
    assert [name for name, same in made if not same] == []
