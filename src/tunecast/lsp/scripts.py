"""Python files: where a training is described and begun, and what a trace says of their lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.records import NamedTuple
from tunecast.units import gib

ARGUMENTS = re.compile(
    r"(?:Seq2Seq)?TrainingArguments|(?:SFT|DPO|KTO|ORPO|CPO|Reward|PRM|GRPO|RLOO|PPO|GKD)Config|LoraConfig"
)
_CALL = re.compile(rf"^[^#\"']*?\b(?P<name>{ARGUMENTS.pattern})\s*\(")
_TRAIN = re.compile(r"^[^#\"']*?\b(\w*[tT]rainer\w*)(\(.*\))?\.train\s*\(")
SOURCE = re.compile(r"(?P<file>.*):(?P<line>\d+)$")


class Call(NamedTuple):
    line: int
    """From 0 on."""
    name: str
    trains: bool


class TracedLine(NamedTuple):
    line: int
    """From 0 on."""
    nbytes: int


def calls(text: str) -> list[Call]:
    """Of code that cannot be parsed now, by its lines."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return list(_by_line(text))
    found = {call.line: call for node in ast.walk(tree) if isinstance(node, ast.Call) for call in _of(node)}
    return [found[line] for line in sorted(found)]


def _of(node: ast.Call) -> Iterator[Call]:
    name = _name(node.func)
    if ARGUMENTS.fullmatch(name):
        yield Call(node.lineno - 1, name, False)
    elif isinstance(node.func, ast.Attribute) and name == "train":
        owner = node.func.value
        told = _name(owner.func if isinstance(owner, ast.Call) else owner)
        if "trainer" in told.lower():
            yield Call(node.lineno - 1, f"{told}.train", True)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _by_line(text: str) -> Iterator[Call]:
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text)):
        if found := _CALL.match(line):
            yield Call(number, found["name"], False)
        elif found := _TRAIN.match(line):
            yield Call(number, f"{found[1]}.train", True)


def traced_lines(told: Mapping[str, Any], name: str) -> list[TracedLine]:
    """Of `tunecast trace --json`, what each line of the file of this name holds at the peak."""
    sums: dict[int, int] = {}
    for source, nbytes in told["trace"]["lines_bytes"].items():
        found = SOURCE.fullmatch(source)
        if found and found["file"].replace("\\", "/").rpartition("/")[2] == name:
            line = int(found["line"]) - 1
            sums[line] = sums.get(line, 0) + nbytes
    return [TracedLine(line, nbytes) for line, nbytes in sorted(sums.items())]


def trace_text(told: Mapping[str, Any], name: str) -> str:
    """The verdict, then line by line."""
    memory, time, fits = told["memory"], told["time"], told["fits"]
    verdict = {True: "fits", False: "does not fit", None: "not resolved, so far it"}[fits]
    if fits and not told["fits_surely"]:
        verdict = "may not fit"
    needs = f"needs {gib(told['smallest_capacity_bytes'])} of {gib(told['capacity_bytes'])}"
    clock = "" if time is None or time["step_s"] is None else f", {time['step_s']:.3g} s per step"
    lines = [f"{verdict}{'' if fits is None else ':'} {needs}{clock}", *(told["reasons"][:1] if fits is None else [])]
    lines += [f"{name}: {gib(memory['allocated_bytes'])} in use at the peak; by line:"]
    traced = sorted(traced_lines(told, name), key=lambda each: -each.nbytes)
    lines += [f"  line {each.line + 1}  {gib(each.nbytes)}" for each in traced]
    return "\n".join([*lines, ""])
