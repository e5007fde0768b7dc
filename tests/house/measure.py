"""The size of the source and of a start, as figures to compare between two checkouts.

    ./dev measure                           of this checkout
    ./dev measure --source OTHER/src        of another one
    ./dev measure --starts 0                without the starts, which take half a minute

Code lines  are those with code on them: no blank lines, no comments, no docstrings (nor strings below a field).
Functions   are all, nested ones and methods too; the length is from `def` to the last line.
Branches    of a function are 1 and 1 more for each if, for, while, except, case, conditional expression, comprehension,
            `and` and `or`. Those of nested functions count in both.
A start     is the CPU time of a process, the best of 20. `predict --json` is given in starts of `python -c pass`, which
            is started in turn with it; bytecode is compiled beforehand.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import resource
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
MOST_BRANCHES = 15
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.IfExp, ast.comprehension)
PREDICT = ("-m", "tunecast", "predict", "llama-3.1-8b", "--method", "qlora", "--gpu", "rtx-4090", "--json")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    place: str
    lines: int
    branches: int


@dataclass(frozen=True)
class File:
    room: str
    code_lines: int
    functions: Sequence[Function]
    classes: Sequence[str]


def docstring_lines(tree: ast.Module) -> set[int]:
    """The lines of strings that stand alone as a statement."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(text: str) -> int:
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - docstring_lines(ast.parse(text)))


def branches(function: FunctionNode) -> int:
    nodes = list(ast.walk(function))
    alternatives = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + sum(isinstance(node, BRANCHES) for node in nodes) + alternatives


def measure_file(path: Path, source: Path) -> File:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(source / "tunecast")
    nodes = list(ast.walk(ast.parse(text)))
    functions = [
        Function(f"{name}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1, branches(node))
        for node in nodes
        if isinstance(node, FunctionNode)
    ]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return File(str(name.parent), code_lines(text), functions, classes)


def measure_source(source: Path) -> list[File]:
    return [measure_file(path, source) for path in sorted((source / "tunecast").rglob("*.py"))]


def cpu_s(command: Sequence[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def best_starts(source: Path, times: int) -> tuple[float, float]:
    """Seconds of CPU time of a bare start and of a prediction."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": ""}
    commands = ([sys.executable, "-c", "pass"], [sys.executable, *PREDICT])
    for command in commands:
        cpu_s(command, environment)
    turns = [[cpu_s(command, environment) for command in commands] for _ in range(times)]
    bare, predict = (min(column) for column in zip(*turns, strict=True))
    return bare, predict


def report(files: Sequence[File]) -> Iterator[str]:
    functions = [function for file in files for function in file.functions]
    lengths = sorted(function.lines for function in functions)
    branched = sorted((f for f in functions if f.branches > MOST_BRANCHES), key=lambda f: -f.branches)
    classes = Counter(name for file in files for name in file.classes)
    twice = [f"{name} ({times})" for name, times in sorted(classes.items()) if times > 1]
    p90 = statistics.quantiles(lengths, n=10)[-1]
    yield f"code lines           {sum(file.code_lines for file in files):,} in {len(files)} files"
    yield f"functions            {len(functions):,} of {statistics.median(lengths):.0f} lines (median), {p90:.0f} (p90)"
    yield f"over {MOST_BRANCHES} branches     {len(branched)}"
    yield from (f"    {function.branches:3}  {function.place}" for function in branched)
    yield f"class names twice    {len(twice)}: {', '.join(twice)}"
    yield "files and code lines of each folder"
    for room in sorted({file.room for file in files}):
        lines = [file.code_lines for file in files if file.room == room]
        yield f"    {len(lines):3}  {sum(lines):6,}  {room}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="./dev measure", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=SOURCE, metavar="FOLDER", help="the src folder to measure")
    parser.add_argument("--starts", type=int, default=20, metavar="N", help="how often each program is started")
    arguments = parser.parse_args()
    print("\n".join(report(measure_source(arguments.source))))
    if arguments.starts:
        bare, predict = best_starts(arguments.source, arguments.starts)
        print(f"predict --json       {predict / bare:.1f} bare starts ({predict * 1e3:.0f} / {bare * 1e3:.0f} ms)")


if __name__ == "__main__":
    main()
