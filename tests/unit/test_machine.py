"""The machine on paper: what it is made with, and how its notes become the events of a tape."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tunecast
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT32
from tunecast.tape.build.machine import Detail, Machine, Setup
from tunecast.tape.build.written import OLD_WORKSPACE, Repeat, without_workspaces
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase, Role

BUILD = Path(tunecast.__file__).parent / "tape" / "build"
GIVEN = {*Setup._fields, *Detail._fields, "card", "scheme", "rotary", "head_modules"}
"""What a machine gets when it is made, or by a method of its own."""


def targets(path: Path) -> list[str]:
    """The attributes of machines that a file assigns to."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        places = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for place in places:
            for each in place.elts if isinstance(place, ast.Tuple) else [place]:
                if isinstance(each, ast.Attribute) and ast.unparse(each.value).endswith("machine"):
                    found.append(each.attr)
    return found


def test_a_machine_is_not_filled_in_from_outside() -> None:
    paths = sorted(BUILD.rglob("*.py"))
    assert "module" in {name for path in paths for name in targets(path)}, "modes are set: the search finds something"
    filled = {str(path.relative_to(BUILD)): GIVEN & set(targets(path)) for path in paths}
    assert {path: names for path, names in filled.items() if names} == {}


def test_a_machine_without_a_scheme_says_so() -> None:
    with pytest.raises(ValueError, match="scheme"):
        Machine(Card()).scheme.wrap(None)


def test_what_a_stack_sets_is_in_its_setup() -> None:
    machine = Machine(Card(), Setup(BFLOAT16, reentrant=True, packs=3), Detail(keeps_ops=False, priced_from=2))
    assert machine.weights_dtype == BFLOAT16 and machine.reentrant and machine.packs == 3
    assert not machine.writes_ops() and machine.priced_from == 2


def test_notes_become_events() -> None:
    """A block of 8 bytes in forward, one of 4 in backward; both go, the later one first, and come sorted."""
    machine = Machine(Card())
    machine.phase, machine.in_forward, machine.module = Phase.FORWARD, True, "layer"
    first = machine.tensor((2,), FLOAT32)
    machine.phase, machine.in_forward, machine.in_backward = Phase.BACKWARD, False, True
    second = machine.tensor((1,), FLOAT32)
    del second
    del first
    assert machine.tape_events() == (
        Begin(Phase.FORWARD, 0), Alloc(0, 8, Role.ACTIVATIONS, "layer"), Begin(Phase.BACKWARD, 0),
        Alloc(1, 4, Role.TEMPORARIES, "layer"), Free(0), Free(1),
    )  # fmt: skip


def test_a_repeated_stretch_has_blocks_of_its_own() -> None:
    machine = Machine(Card())
    machine.phase = Phase.OTHER
    machine.module = "m"
    start = len(machine.events)
    block = machine.tensor((1,), FLOAT32)
    del block
    notes = machine.events[start:]
    machine.events += [Repeat(notes, 0, 1, 1, 3, ())] * 2
    told = [event for event in machine.tape_events() if not isinstance(event, Op)]
    assert told == [
        Begin(Phase.OTHER, 0), Alloc(0, 4, module="m"), Free(0),
        Begin(Phase.OTHER, 3), Alloc(1, 4, module="m"), Free(1), Alloc(2, 4, module="m"), Free(2),
    ]  # fmt: skip


def test_a_workspace_is_there_when_its_stretch_repeats() -> None:
    workspace = Op("cublas_workspace", kernels=0)
    assert without_workspaces([4, workspace, 5, ~4], {5}) == [4, OLD_WORKSPACE, ~4]
