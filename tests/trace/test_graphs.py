"""CUDA graphs: what they capture lies in pools of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, EmptyCache
from tunecast.tape.trace.ledger import STREAMS_PER_POOL
from tunecast.tape.trace.run import trace_script

CAPTURE = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
rows = torch.ones(1000, 64, device="cuda")
model(rows).sum().backward()
optimizer.step()
first, second, third = (torch.cuda.CUDAGraph() for _ in range(3))
with torch.cuda.graph(first):
    assert torch.cuda.is_current_stream_capturing()
    kept = rows + 1
with torch.cuda.graph(second, pool=first.pool()):
    more = kept[:500] * 2
with torch.cuda.graph(third):
    other = rows[:250] * 2
first.replay()
assert not torch.cuda.is_current_stream_capturing()
eager = rows[:100] * 2
graphed = torch.cuda.make_graphed_callables(model, (rows,))
graphed(rows).sum().backward()
optimizer.step()
"""


def test_captures_have_pools(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CAPTURE)
    tape, answer = trace_script(str(script), [], Card())
    assert (answer.steps, answer.error) == (2, None)
    allocated = [event for event in tape.events if isinstance(event, Alloc)]
    pool = {
        rows: {e.stream // STREAMS_PER_POOL for e in allocated if e.nbytes == rows * 256} for rows in (500, 250, 100)
    }
    first = {event.stream // STREAMS_PER_POOL for event in allocated if event.nbytes == 1000 * 256} - {0}
    assert pool[500] and pool[500] <= first, "a pool that is shared"
    assert pool[250] and pool[250].isdisjoint(pool[500] | {0}), "one of its own"
    assert pool[100] == {0}
    assert sum(isinstance(event, EmptyCache) for event in tape.events) >= 3, "each capture empties the cache first"
    assert any("CUDA graph" in guess for guess in tape.guesses)
