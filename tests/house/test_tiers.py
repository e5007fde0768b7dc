"""The fast tier looks into every room and needs no torch; the programs that measure the house count as they say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FAST = ("unit", "facts", "house")
"""The folders of ./dev fast."""
ALL_OF_IT = re.compile(r"^pytestmark = pytest\.mark\.whole", re.MULTILINE)
FRAMEWORKS = re.compile(r"^(import|from) (torch|transformers|peft|trl|accelerate|datasets|numpy)\b", re.MULTILINE)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"house_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def fast_files() -> dict[str, str]:
    texts = {path.name: path.read_text("utf-8") for name in FAST for path in (ROOT / "tests" / name).glob("test_*.py")}
    return {name: text for name, text in texts.items() if not ALL_OF_IT.search(text)}


@pytest.mark.parametrize("room", sorted(path.name for path in (ROOT / "src" / "tunecast").iterdir() if path.is_dir()))
def test_the_fast_tier_looks_into_every_room(room: str) -> None:
    if room.startswith("_"):
        return
    looks = re.compile(rf"^from tunecast\.{room}\b|^from tunecast import .*\b{room}\b", re.MULTILINE)
    assert [name for name, text in fast_files().items() if looks.search(text)], f"no test of {room} in ./dev fast"


def test_the_fast_tier_needs_no_framework() -> None:
    assert not [name for name, text in fast_files().items() if FRAMEWORKS.search(text)]
    packages = (ROOT / "tests" / "environments" / "fast.txt").read_text("utf-8")
    assert not re.search("^(torch|transformers|numpy)", packages, re.MULTILINE)


SOURCE = '''\
"""A package of two files."""
# a comment


class Twice: ...


def outer(values):
    """One for itself, one for each `for`, `if` and `or`."""
    for value in values:
        if value or not values:
            inner()


def inner():
    return [each for each in (1, 2)]
'''


def test_lines_branches_and_names_are_counted(tmp_path: Path) -> None:
    measure = load("measure")
    package = tmp_path / "tunecast" / "room"
    package.mkdir(parents=True)
    (package / "one.py").write_text(SOURCE)
    (package / "two.py").write_text("class Twice: ...\n")
    one, two = measure.measure_source(tmp_path)
    assert (one.code_lines, two.code_lines) == (7, 1)
    assert [(function.lines, function.branches) for function in one.functions] == [(5, 4), (2, 2)]
    text = "\n".join(measure.report([one, two]))
    assert "class names twice    1: Twice (2)" in text


def test_a_hop_is_a_change_of_file_that_the_stack_has_not_made_before() -> None:
    walk = load("walk")
    shell = walk.Call(None, "the shell", "", frozenset())
    codes = [
        compile("", f"{n}", "exec").replace(co_name=name) for n, name in enumerate(["a", "b", "__call__", "c", "d"])
    ]
    call = shell
    for code, file in zip(codes, ["one.py", "two.py", "modules.py", "one.py", "two.py"], strict=True):
        call = call.callee(code, file)
    # shell > one > two > (modules passed through) > one > two, which was passed before
    assert (call.file, call.hops) == ("two.py", 3)
    assert [line.split() for line in walk.lines(call)] == [
        ["1", "one.py", "a"], ["2", "two.py", "b"], ["3", "one.py", "c"], ["two.py", "d"],
    ]  # fmt: skip
