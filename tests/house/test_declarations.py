"""A stack, a sharding, an optimizer is declared once: nobody else asks for one by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tunecast.job.optimizers import OPTIMIZERS
from tunecast.job.shardings import SHARDINGS
from tunecast.job.stacks import STACKS
from tunecast.tape.build.stacks import module_of

PACKAGE = Path(__file__).parents[2] / "src" / "tunecast"
BEGINNINGS = {"zero", "paged_", "adamw", "adamw_torch", "galore", "apollo", "lion", "_layerwise", "layerwise"}
"""Parts of names that tell a kind: asked for, they are as bad as the names."""
NAMES = {*STACKS, *SHARDINGS, *OPTIMIZERS, *BEGINNINGS}
DECLARATIONS = ("job/stacks.py", "job/shardings.py", "job/optimizers.py")
PROGRAMS = (
    *("tape/build/stacks/", "tape/build/tasks/", "tape/build/sharding/", "tape/build/optimizers/"),
    "launching/programs/",
)
"""What a declaration stands for, in code: each speaks of itself."""
READERS = "job/recipes/"
"""What trainers' files say, in our words: it sets them, and asks for none."""
SPELLINGS = ("job/names.py", "job/foreign.py")
"""How other programs' users write them."""
OTHERWISE = {
    "job/knob.py": "transformers, the package a default is from",
    "job/job.py": "transformers, the package whose release is followed",
    "job/releases.py": "packages whose releases are followed",
    "job/spellings.py": "unsloth, an organisation on the Hub",
    "job/task_sections.py": "transformers, the package whose generate() writes completions",
    "launching/preflight/machine.py": "packages whose releases are compared",
    "learn/record.py": "packages whose releases are recorded",
    "planning/space.py": "zero, a word of --allow",
    "prediction/memory/ranges_table.py": "written by a benchmark, by the stack that was measured",
    "tape/build/eras.py": "transformers, the package whose releases these are",
    "tape/trace/child.py": "packages whose releases a trace tells",
    "tape/trace/packages/unsloth.py": "the package, as it is imported",
    "tape/trace/recipes_unsloth.py": "the package, and its word for its own checkpointing",
    "tape/trace/tensor_files.py": "packages that compare addresses",
}


def literals(path: Path) -> Iterator[ast.Constant]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield node


def sources() -> list[str]:
    return sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("place", sources())
def test_nobody_asks_for_one_by_name(place: str) -> None:
    if place in (*DECLARATIONS, *SPELLINGS, *OTHERWISE) or place.startswith((*PROGRAMS, READERS)):
        return
    found = [f"line {node.lineno}: {node.value!r}" for node in literals(PACKAGE / place) if node.value in NAMES]
    assert not found, f"{place} asks by name; ask the declaration ({', '.join(DECLARATIONS)}): {found}"


def test_the_exceptions_are_there() -> None:
    assert set(OTHERWISE) <= set(sources())


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_has_its_program(name: str) -> None:
    stack, program = STACKS[name], module_of(name)
    assert callable(program.model) and callable(program.train) and isinstance(program.REFUSES, dict)
    assert "torch" in stack.follows
    assert set(stack.shardings) <= set(SHARDINGS)
    assert stack.frugal is None or stack.frugal in STACKS
    assert stack.recipe is None or (PACKAGE / "tape" / "trace" / f"{stack.recipe}.py").is_file()
    assert stack.quantized_optimizer is None or stack.quantized_optimizer in OPTIMIZERS
    assert stack.uses_trainer or not (stack.uses_accelerate or stack.has_trainer_sampler or stack.by_script)


@pytest.mark.parametrize("name", SHARDINGS)
def test_a_sharding_cuts_from_the_state_on(name: str) -> None:
    sharding = SHARDINGS[name]
    assert sharding.cuts_state >= sharding.cuts_gradients >= sharding.cuts_weights
    assert not (sharding.is_fsdp and sharding.is_zero)
    assert {*sharding.more_cut, sharding.most_cut} <= set(SHARDINGS)
    assert any(name in stack.shardings for stack in STACKS.values()), "which no stack runs"
    assert sharding.host_memory


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_has_its_step_and_its_twins(name: str) -> None:
    kind = OPTIMIZERS[name]
    for twin in (kind.fused, kind.paged_twin, kind.eight_bit, kind.paged_eight_bit):
        assert twin is None or OPTIMIZERS[twin].paper
    assert kind.is_paged == name.startswith("paged_")
    if kind.paper:
        module, _, made = kind.paper.partition(":")
        assert hasattr(import_module(f"tunecast.tape.build.optimizers.{module}"), made)
    assert not kind.runs or kind.runs.count(":") == 1
