"""Compiled programs small enough for paper: the real compiler decides, and one traced process runs them all.

`Gate` multiplies 1024 x 64 values by a 64 x 64 weight and bends the product three times. Every block it makes has
1024 * 64 * 4 = 262,144 bytes; a compiler needs two of them where eager code takes four.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Inductor writes no kernels without Triton")
SOURCE = Path(__file__).parents[2] / "src"
BLOCK = 1024 * 64 * 4
L2_CACHE = 60 << 20

PROGRAMS = '''
import gc, json, subprocess
import torch
from torch.utils.checkpoint import checkpoint
from tunecast.tape.op import Alloc, Begin, Op, Phase
from tunecast.tape.card import Card
from tunecast.tape.trace.ending import LEAVE
from tunecast.tape.trace.session import tracing

class NoProcess(subprocess.Popen):
    def __init__(self, command, *args, **kwargs):
        raise AssertionError(f"the compiler started {command}")

subprocess.Popen = NoProcess

class Gate(torch.nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
        self.breaks = breaks
    def forward(self, x):
        bent = torch.tanh(x @ self.weight)
        if self.breaks:
            torch._dynamo.graph_break()
        return torch.sin(bent * 2)

class Recomputed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()
    def forward(self, x):
        return checkpoint(self.gate, x, use_reentrant=False)

def train(call, module, lengths=(1024, 1024)):
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for length in lengths:
        x = torch.ones(length, 64, device="cuda")
        loss = call(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

def phase(events, wanted):
    now = None
    for event in events:
        now = event.phase if isinstance(event, Begin) else now
        if now is wanted:
            yield event

answers = {}
with tracing(Card()) as recorder:
    def program(f):
        gc.collect(); recorder.forget_all(); torch._dynamo.reset()
        f()
        tape = recorder.tape({})
        steps = tape.steps()
        last = steps[max(step for step in steps if any(phase(steps[step], Phase.FORWARD)))]
        forward, backward = list(phase(last, Phase.FORWARD)), list(phase(last, Phase.BACKWARD))
        answers[f.__name__] = {
            "forward": [e.nbytes for e in forward if isinstance(e, Alloc) and e.nbytes >= 1024],  # not the loss
            "products_backward": sum(e.name == "mm" for e in backward if isinstance(e, Op)),
            "kernels": [[e.name, e.module] for e in forward if isinstance(e, Op) and e.name.startswith("triton")],
            "timing": [sum(isinstance(e, Alloc) and e.nbytes == %d for e in steps[s]) for s in (0, 1)],
            "phases": [str(e.phase) for e in steps[0] if isinstance(e, Begin)],
            "sources": [e.source for e in forward if isinstance(e, Op) and e.source],
            "guesses": list(tape.guesses),
        }

    @program
    def eager():
        gate = Gate()
        train(gate, gate)

    @program
    def compiled():
        gate = Gate()
        train(torch.compile(gate), gate)

    @program
    def compiled_in_place():
        gate = Gate()
        gate.compile()
        train(gate, gate)

    @program
    def compiled_function():
        gate = Gate()
        train(torch.compile(lambda x: gate(x)), gate)

    @program
    def with_a_break():
        gate = Gate(breaks=True)
        train(torch.compile(gate), gate)

    @program
    def of_varying_length():
        gate = Gate()
        train(torch.compile(gate), gate, lengths=(1024, 512, 768, 8192))

    @program
    def recomputed():
        outer = Recomputed()
        train(torch.compile(outer), outer)

    @program
    def partly_on_the_host():
        gate, table = Gate(), torch.arange(4.0)
        train(torch.compile(lambda x: gate(x) * (table.exp() * 2).sum()), gate)

    @program
    def not_compilable():
        gate = Gate(breaks=True)
        train(torch.compile(gate, fullgraph=True), gate)

    @program
    def timed():
        gate = Gate()
        train(torch.compile(gate, mode="max-autotune"), gate)

    import torch._inductor.config
    if hasattr(torch._inductor.config, "wrap_inductor_compiled_regions"):
        @program
        def one_operation():
            gate = Gate()
            train(torch.compile(gate, options={"wrap_inductor_compiled_regions": True}), gate)
print(json.dumps(answers), flush=True)
LEAVE(0)
'''  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    program = tmp_path_factory.mktemp("compile") / "programs.py"
    program.write_text(PROGRAMS % L2_CACHE)
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "", "PATH": ""}  # no C compiler
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_eager_code_keeps_every_step(answers: dict[str, Any]) -> None:
    """The product, its tanh, that doubled, and the sine."""
    assert answers["eager"]["forward"] == [BLOCK] * 4


@pytest.mark.parametrize("name", ["compiled", "compiled_in_place", "compiled_function"])
def test_one_kernel_bends_the_product(answers: dict[str, Any], name: str) -> None:
    """However the model is compiled: the product, which the backward pass needs, and the result of one fused kernel."""
    found = answers[name]
    assert found["forward"] == [BLOCK] * 2
    assert [module for _, module in found["kernels"]] == ["Gate"]
    assert found["guesses"] == []


def test_compiled_code_that_is_one_operation_does_what_is_inside(answers: dict[str, Any]) -> None:
    if "one_operation" not in answers:
        pytest.skip("this torch has no wrap_inductor_compiled_regions")
    found = answers["one_operation"]
    assert found["forward"] == [BLOCK] * 2
    assert [module for _, module in found["kernels"]] == ["Gate"]
    assert found["guesses"] == []


def test_a_graph_break_makes_two_kernels(answers: dict[str, Any]) -> None:
    """The tanh, which is its own gradient's need, is written over the product; the second kernel makes the result."""
    found = answers["with_a_break"]
    assert found["forward"] == [BLOCK] * 2
    assert len(found["kernels"]) == 2
    assert found["guesses"] == []


def test_lengths_share_one_graph(answers: dict[str, Any]) -> None:
    """The second length makes the graph general; the fourth, 8192, runs it: two blocks of eight times the size."""
    found = answers["of_varying_length"]
    assert found["forward"] == [8 * BLOCK] * 2
    assert found["guesses"] == []


def test_host_work_needs_no_compiler(answers: dict[str, Any]) -> None:
    """No process may be started here. The host's sum arrives as a number and is multiplied in the one kernel."""
    found = answers["partly_on_the_host"]
    assert found["forward"] == [BLOCK] * 2
    assert found["guesses"] == []


def test_lines_are_those_of_the_program(answers: dict[str, Any]) -> None:
    """Blocks of a MiB or more know their line: the product and the bending, not the generated code."""
    lines = {Path(source.rpartition(" > ")[2]).name for source in answers["of_varying_length"]["sources"]}
    numbered = PROGRAMS.splitlines()
    assert {numbered[int(line.partition(":")[2]) - 1].strip() for line in lines} == {
        "bent = torch.tanh(x @ self.weight)",
        "return torch.sin(bent * 2)",
    }


def test_a_recomputed_product_is_not_kept(answers: dict[str, Any]) -> None:
    """The result is written over the product; the backward pass multiplies again, then for the weight's gradient."""
    found = answers["recomputed"]
    assert found["forward"] == [BLOCK]
    assert found["products_backward"] == 2
    assert [module for _, module in found["kernels"]] == ["gate"]


def test_the_first_launch_is_timed_with_a_buffer(answers: dict[str, Any]) -> None:
    """Two configurations of the forward kernel and at least as many backward, each with the L2 cache flushed."""
    first, second = answers["compiled"]["timing"]
    assert first >= 4
    assert second == 0


def test_the_compilers_own_backward_pass_is_no_phase(answers: dict[str, Any]) -> None:
    assert answers["compiled"]["phases"][:2] == ["forward", "backward"]


def test_what_cannot_be_compiled_is_told(answers: dict[str, Any]) -> None:
    found = answers["not_compilable"]
    assert found["forward"] == [BLOCK] * 4
    assert len(found["guesses"]) == 1
    assert "as if it were not compiled" in found["guesses"][0]
    assert "graph_break" in found["guesses"][0]


def test_timed_modes_are_told(answers: dict[str, Any]) -> None:
    found = answers["timed"]
    assert found["forward"] == [BLOCK] * 2
    assert any("max_autotune" in guess for guess in found["guesses"])
