"""The functions of a package's source, each as a short hash of its code: without comments, docstrings, annotations and
decorators, so that only what it does counts, and the same for every Python that parses it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SAYS_NOTHING = {"annotation", "returns", "decorator_list", "type_comment", "type_params", "kind", "ctx"}
DIGITS = 12


def functions_of(file: Path) -> dict[str, str]:
    """Name, with its classes in front, to hash. Of a class itself its bases and its own assignments count."""
    try:
        tree = ast.parse(file.read_text("utf-8", errors="replace"))
    except SyntaxError:  # templates and files for an older Python
        return {}
    return {name: hash_of(node) for name, node in _definitions(tree, "")}


def _definitions(node: ast.Module | ast.ClassDef, before: str) -> Iterator[tuple[str, ast.AST]]:
    for child in node.body:
        if isinstance(child, FUNCTIONS):
            yield f"{before}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            own = [each for each in child.body if not isinstance(each, (*FUNCTIONS, ast.ClassDef))]
            yield f"{before}{child.name}", ast.ClassDef(child.name, child.bases, child.keywords, own, [])
            yield from _definitions(child, f"{before}{child.name}.")
        elif isinstance(child, (ast.If, ast.Try)):  # `if is_torch_available():`
            yield from _definitions(ast.Module(child.body, []), before)


def hash_of(node: ast.AST) -> str:
    return hashlib.sha256(repr(_code(node)).encode()).hexdigest()[:DIGITS]


def _code(value: Any) -> Any:
    if isinstance(value, ast.AST):
        fields = [(name, _code(each)) for name, each in ast.iter_fields(value) if name not in SAYS_NOTHING]
        return (type(value).__name__, *((name, each) for name, each in fields if each not in (None, ())))
    if isinstance(value, list):
        return tuple(_code(each) for each in value if not _is_text_alone(each))
    return value


def _is_text_alone(node: Any) -> bool:
    """A docstring, or a string below a field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Of the functions that were there: `changed` or `gone`."""
    return {
        name: "gone" if name not in after else "changed"
        for name, code in before.items()
        if after.get(name) != code
    }  # fmt: skip
