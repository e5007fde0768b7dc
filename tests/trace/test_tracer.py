"""What the tracer sees in programs small enough for paper. One traced process runs them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.trace
SOURCE = Path(__file__).parents[2] / "src"

PROGRAMS = '''
import gc, json, sys
import torch
from tunecast.tape.op import Alloc, Free, Op, Phase
from tunecast.tape.card import Card
from tunecast.tape.trace.ending import LEAVE
from tunecast.tape.trace.session import tracing

def sizes(tape, phase=None):
    """Allocations positive, frees negative, workspaces of libraries left out."""
    size = {e.block: e.nbytes for e in tape.events if isinstance(e, Alloc)}
    kept = {e.block for e in tape.events if isinstance(e, Alloc) and e.module.endswith("_workspace")}
    return [size[e.block] * (1 if isinstance(e, Alloc) else -1) for e in tape.events
            if isinstance(e, (Alloc, Free)) and size[e.block] and e.block not in kept]

class Square(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n, n, device="cuda"))
    def forward(self, x):
        return x @ self.weight

answers = {}
with tracing(Card()) as recorder:
    def program(f):
        gc.collect(); recorder.forget_all()
        result = f()
        tape = recorder.tape({})
        answers[f.__name__] = {"sizes": sizes(tape), "result": result, "guesses": list(tape.guesses),
            "assumptions": list(tape.assumptions),
            "roles": [[e.nbytes, str(e.role), e.module] for e in tape.events if isinstance(e, Alloc)],
            "ops": [[e.name, e.module, e.flops] for e in tape.events if isinstance(e, Op)]}

    @program
    def in_place_accumulation():
        """x is used twice: the engine adds the second gradient into the first."""
        x = torch.ones(256, device="cuda", requires_grad=True)
        (x * 2 + x * 3).sum().backward()
        return x.grad is not None

    @program
    def known_values():
        mask = torch.ones(4, 8, dtype=torch.int64, device="cuda")
        mask[0, 5:] = 0
        kept = torch.arange(32, device="cuda").view(4, 8)[mask.bool()]
        return [int(mask.sum()), bool(mask.all()), len(kept), mask.sum(1).tolist()]

    @program
    def unknown_values():
        x = torch.randn(4, device="cuda")
        return [float(x.sum()), bool((x > 0).any())]

    @program
    def a_training_step():
        model = torch.nn.Sequential(Square(16), Square(16))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(2):
            loss = model(torch.ones(16, 16, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del loss
        return recorder.scopes.steps_done

    @program
    def a_recomputed_layer():
        from torch.utils.checkpoint import checkpoint
        model = Square(16)
        x = torch.ones(16, 16, device="cuda", requires_grad=True)
        y = checkpoint(lambda x: model(x).sin(), x, use_reentrant=False)
        y.sum().backward()
        return True

    @program
    def memory_as_torch_tells_it():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        x = torch.empty(1000, device="cuda")
        y = x + 1
        del y
        return [torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before,
                torch.cuda.get_device_name(), torch.cuda.is_available()]

    @program
    def side_streams():
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.empty(8, device="cuda")
        y = torch.empty(8, device="cuda")
        tape = recorder.tape({})
        return [e.stream for e in tape.events if isinstance(e, Alloc)][-2:]

    @program
    def a_thread_that_looks_while_another_computes():
        """In the middle of an operation, where a fake tensor is on no device: its own thread asks, and another."""
        import threading
        from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
        x, run, seen = torch.ones(4, device="cuda"), recorder.run_fake, []
        def look():
            seen.append(recorder.__torch_dispatch__(torch.ops.prim.device.default, (FakeTensor,), (x,)).type)
        def and_look(func, args, kwargs):
            with in_kernel_invocation_manager(x.fake_mode):
                look()
                thread = threading.Thread(target=look)
                thread.start(); thread.join()
            return run(func, args, kwargs)
        recorder.run_fake = and_look
        x.sin()
        recorder.run_fake = run
        return seen

    @program
    def a_large_model_takes_no_host_memory():
        import resource
        weights = [torch.empty(20_000, 20_000, device="cpu") for _ in range(100)]
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(json.dumps(answers), flush=True)
LEAVE(0)
'''


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_second_gradient_is_added_in_place(answers: dict[str, Any]) -> None:
    # x, x*2, x*3, their sum | the products die | the loss, 1.0, then gradients 3x and 2x into one block
    sizes = answers["in_place_accumulation"]["sizes"]
    assert sizes.count(1024) == 6


def test_small_integers_keep_their_values(answers: dict[str, Any]) -> None:
    assert answers["known_values"]["result"] == [29, False, 29, [5, 8, 8, 8]]
    assert answers["known_values"]["guesses"] == []


def test_what_is_not_known_is_written_down(answers: dict[str, Any]) -> None:
    assert answers["unknown_values"]["result"] == [1.0, False]
    assert "torch.float32" in answers["unknown_values"]["assumptions"][0]
    assert "torch.bool" in answers["unknown_values"]["guesses"][0]


def test_roles_of_a_training_step(answers: dict[str, Any]) -> None:
    step = answers["a_training_step"]
    assert step["result"] == 2
    weights = [r for r in step["roles"] if r[1] == "weights"]
    assert [r[0] for r in weights] == [1024, 1024] and {r[2] for r in weights} == {"0", "1"}
    gradients = [r for r in step["roles"] if r[1] == "gradients"]
    assert [r[0] for r in gradients] == [1024] * 4  # two weights, two steps
    state = [r[0] for r in step["roles"] if r[1] == "optimizer" and r[0] == 1024]
    assert len(state) == 4  # two moments a weight, made once


def test_products_are_counted_where_they_belong(answers: dict[str, Any]) -> None:
    products = [op for op in answers["a_training_step"]["ops"] if op[0] == "mm"]
    assert all(op[2] == 2 * 16 * 16 * 16 for op in products)
    assert {op[1] for op in products} == {"0", "1"}  # the backward ones too


def test_a_recomputed_layer_runs_twice(answers: dict[str, Any]) -> None:
    names = [op[0] for op in answers["a_recomputed_layer"]["ops"]]
    assert names.count("sin") == 1 and names.count("mm") >= 3  # recomputation stops once all it needs is there


def test_torch_cuda_answers_as_the_card_would(answers: dict[str, Any]) -> None:
    now, peak, name, available = answers["memory_as_torch_tells_it"]["result"]
    assert (now, peak, name, available) == (4000, 8000, "NVIDIA H200", True)


def test_streams_have_their_own_pools(answers: dict[str, Any]) -> None:
    side, default = answers["side_streams"]["result"]
    assert side != 0 and default == 0


def test_the_state_of_an_operation_is_that_of_its_own_thread(answers: dict[str, Any]) -> None:
    """The engine has a thread for each card: two of them at work ended four of six traces of nn.DataParallel."""
    assert answers["a_thread_that_looks_while_another_computes"]["result"] == ["meta", "cuda"]


def test_160_gb_of_weights_on_the_host_cost_nothing(answers: dict[str, Any]) -> None:
    assert answers["a_large_model_takes_no_host_memory"]["result"] < 4000  # MiB
