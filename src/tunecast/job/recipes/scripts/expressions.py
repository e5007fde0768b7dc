"""What an expression is worth. Nothing of the script is executed: only what stands here is computed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.recipes.scripts.values import FOLLOWS_CARD, UNKNOWN, DottedName, Made, Unknown

MOST_STEPS = 400_000
MOST_DEPTH = 100
MOST_TEXT, MOST_ITEMS, MOST_NUMBER = 100_000, 10_000, 10**30
MOST_PRODUCT = 10**7
"""Of the lengths of a text and of what is put into it."""
OPERATIONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
UNARY: Mapping[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{each.__name__: each for each in (int, float, bool, len, max, min, round, abs, list, tuple, sum)},
    "str": lambda value: str(value)[:MOST_TEXT],
}
TEXT_METHODS = frozenset(
    {"lower", "upper", "strip", "replace", "split", "startswith", "endswith", "removeprefix", "removesuffix", "format"}
)
ASKS_CARD = ("is_bfloat16_supported", "is_bf16_supported", "is_torch_bf16_gpu_available", "is_ampere_or_newer")
OF_MACHINE: Mapping[str, bool] = {
    "torch.cuda.is_available": True,
    **dict.fromkeys(("torch.xpu.is_available", "torch.npu.is_available", "torch.backends.mps.is_available"), False),
    **dict.fromkeys(("torch.mps.is_available", "torch.hpu.is_available", "torch.musa.is_available"), False),
}
"""What a script is told on a machine with NVIDIA's cards."""
ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get")


class PythonFile:
    """A file of Python: what it names."""

    def __init__(self, file: str = "", name: str = "__main__") -> None:
        self.file = file
        """'': the script itself."""
        self.scope: dict[str, Any] = {"__name__": name}
        self.imports: dict[str, str] = {}
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.classes: dict[str, ast.ClassDef] = {}


class Expressions:
    """Computes values; calls that nothing here knows are handed to `call`."""

    def __init__(self) -> None:
        self.module = PythonFile()
        self.scopes: list[dict[str, Any]] = [self.module.scope]
        self.steps = 0
        self.depth = 0

    def value(self, node: ast.AST | None) -> Any:
        if node is None:
            return None
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise UsageError("the script is too long to be read without running it: tunecast trace -- FILE")
        if self.depth >= MOST_DEPTH:
            return UNKNOWN
        self.depth += 1
        try:
            how = getattr(self, f"_{type(node).__name__.lower()}", None)
            return how(node) if how is not None else UNKNOWN
        finally:
            self.depth -= 1

    def call(self, node: ast.Call) -> Any:
        raise NotImplementedError

    def imported(self, name: str) -> Any:
        """What a name in full stands for; itself where no module that was read has it."""
        return DottedName(name)

    def dotted(self, node: ast.AST) -> str:
        """A name in full: what was imported by where it comes from; '' where it is no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and len(parts) < MOST_DEPTH:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join((self.module.imports.get(node.id, node.id), *reversed(parts)))

    def look_up(self, name: str) -> Any:
        return next((scope[name] for scope in (self.scopes[-1], self.scopes[0]) if name in scope), None)

    def is_local(self, name: str) -> bool:
        return name in self.scopes[-1] or name in self.scopes[0]

    def _constant(self, node: ast.Constant) -> Any:
        value = node.value
        return value if isinstance(value, (str, int, float, bool, type(None))) and not _is_large(value) else UNKNOWN

    def _name(self, node: ast.Name) -> Any:
        if self.is_local(node.id):
            return self.look_up(node.id)
        return self.imported(self.module.imports.get(node.id, node.id))

    def _attribute(self, node: ast.Attribute) -> Any:
        return self.attribute(self.value(node.value), node.attr)

    def attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, Made):
            return value.arguments.get(name, UNKNOWN)
        if not isinstance(value, DottedName):
            return UNKNOWN
        if name == "is_floating_point" and value.startswith("torch."):
            return "float" in value
        return self.imported(f"{value}.{name}")

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> Any:
        items: list[Any] = []
        for each in node.elts[:MOST_ITEMS]:
            if isinstance(each, ast.Starred):
                inner = self.value(each.value)
                items.extend(inner if isinstance(inner, (list, tuple)) else [UNKNOWN])
            else:
                items.append(self.value(each))
        return tuple(items) if isinstance(node, ast.Tuple) else items

    _tuple = _set = _list

    def _dict(self, node: ast.Dict) -> Any:
        made: dict[Any, Any] = {}
        for key, value in zip(node.keys[:MOST_ITEMS], node.values, strict=False):
            read = self.value(value)
            if key is None:
                if not isinstance(read, dict):
                    return UNKNOWN
                made.update(read)
            elif isinstance(name := self.value(key), (str, int, float)):
                made[name] = read
        return made

    def _joinedstr(self, node: ast.JoinedStr) -> Any:
        parts = [self.value(each.value if isinstance(each, ast.FormattedValue) else each) for each in node.values]
        if any(isinstance(part, (Unknown, Made, list, dict, tuple)) for part in parts):
            return UNKNOWN
        if any(isinstance(each, ast.FormattedValue) and each.format_spec is not None for each in node.values):
            return UNKNOWN
        return "".join(map(str, parts))[:MOST_TEXT]

    def _binop(self, node: ast.BinOp) -> Any:
        return self._computed(type(node.op), self.value(node.left), self.value(node.right))

    def _computed(self, operation: type, left: Any, right: Any) -> Any:
        if isinstance(left, (Unknown, Made)) or isinstance(right, (Unknown, Made)) or operation not in OPERATIONS:
            return UNKNOWN
        if operation is ast.Pow and not (_is_small(left) and _is_small(right)):
            return UNKNOWN
        if operation is ast.Mult and not (_is_number(left) and _is_number(right)):
            return UNKNOWN
        if operation is ast.Mod and not _is_number(left):
            return UNKNOWN
        try:
            found = OPERATIONS[operation](left, right)
        except (TypeError, ValueError, ArithmeticError, AttributeError):
            return UNKNOWN
        return UNKNOWN if _is_large(found) else found

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        how = UNARY.get(type(node.op))
        if how is None or isinstance(value, Unknown) or (isinstance(value, Made) and how is not operator.not_):
            return UNKNOWN
        try:
            return how(value)
        except TypeError:
            return UNKNOWN

    def _compare(self, node: ast.Compare) -> Any:
        left = self.value(node.left)
        for operation, each in zip(node.ops, node.comparators, strict=True):
            right = self.value(each)
            if isinstance(left, DottedName) or isinstance(right, DottedName):
                return UNKNOWN
            if isinstance(left, Made) and isinstance(operation, (ast.Is, ast.IsNot)) and right is None:
                found: Any = isinstance(operation, ast.IsNot)
            else:
                found = self._computed(type(operation), left, right)
            if found is not True:
                return found
            left = right
        return True

    def _boolop(self, node: ast.BoolOp) -> Any:
        """Of `x or 8` with an unknown x: unknown, as its value may be either."""
        value: Any = None
        for each in node.values:
            value = self.value(each)
            if isinstance(value, Unknown) or bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def _ifexp(self, node: ast.IfExp) -> Any:
        test = self.value(node.test)
        return self.value(node.body if isinstance(test, (Unknown, DottedName)) or test else node.orelse)

    def _subscript(self, node: ast.Subscript) -> Any:
        of, key = self.value(node.value), self.value(node.slice)
        if isinstance(of, Made) and of.is_data:
            return of
        try:
            return of[key] if isinstance(of, (dict, list, tuple)) and not isinstance(key, Unknown) else UNKNOWN
        except (KeyError, IndexError, TypeError):
            return UNKNOWN

    def _namedexpr(self, node: ast.NamedExpr) -> Any:
        value = self.value(node.value)
        if isinstance(node.target, ast.Name):
            self.scopes[-1][node.target.id] = value
        return value

    def _await(self, node: ast.Await) -> Any:
        return self.value(node.value)

    def _call(self, node: ast.Call) -> Any:
        name = self.dotted(node.func)
        if name.rpartition(".")[2] in ASKS_CARD:
            return FOLLOWS_CARD
        if name in OF_MACHINE:
            return OF_MACHINE[name]
        if name == "getattr" and len(node.args) > 1 and isinstance(attribute := self.value(node.args[1]), str):
            return self.attribute(self.value(node.args[0]), attribute)
        if name in ENVIRONMENT:
            return self.value(node.args[1]) if len(node.args) > 1 else None
        if name in FUNCTIONS and not self.is_local(name):
            return self._known(FUNCTIONS[name], [self.value(each) for each in node.args])
        if name == "dict" and not node.args and not self.is_local(name):
            return self._given_by_name(node)
        if isinstance(node.func, ast.Attribute):
            of = self.value(node.func.value)
            if isinstance(of, str) and not isinstance(of, DottedName):
                return self._of_text(of, node)
            if isinstance(of, dict) and node.func.attr in ("get", "pop", "update"):
                return self._of_mapping(of, node)
            if isinstance(of, list) and node.func.attr in ("append", "extend") and node.args and len(of) < MOST_ITEMS:
                more = self.value(node.args[0])
                of.extend(more if node.func.attr == "extend" and isinstance(more, (list, tuple)) else [more])
                return None
        return self.call(node)

    def _given_by_name(self, node: ast.Call) -> Any:
        made: dict[str, Any] = {}
        for each in node.keywords:
            value = self.value(each.value)
            if each.arg is not None:
                made[each.arg] = value
            elif isinstance(value, dict):
                made.update(value)
            else:
                return UNKNOWN
        return made

    def _of_mapping(self, of: dict[Any, Any], node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Attribute)
        given = [self.value(each) for each in node.args]
        if node.func.attr == "update":
            more = self._given_by_name(node)
            for each in (*given, more):
                of.update(each if isinstance(each, dict) and len(of) < MOST_ITEMS else {})
            return None
        if not given or not isinstance(given[0], (str, int)):
            return UNKNOWN
        return of.get(given[0], given[1] if len(given) > 1 else None)

    def _of_text(self, text: str, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Attribute)
        given = [self.value(each) for each in node.args]
        longest = max((len(each) for each in given if isinstance(each, (str, list, tuple))), default=0)
        if longest * len(text) > MOST_PRODUCT:
            return UNKNOWN
        if node.func.attr == "join" and len(given) == 1 and isinstance(given[0], (list, tuple)):
            return self._known(lambda parts: text.join(parts)[:MOST_TEXT], given)
        if node.func.attr not in TEXT_METHODS or node.keywords:
            return UNKNOWN
        if node.func.attr == "format" and any(mark in text for mark in (":", ".", "[", "!")):
            return UNKNOWN  # widths, attributes: nothing that a name or a number needs
        return self._known(getattr(text, node.func.attr), given)

    def _known(self, how: Callable[..., Any], given: list[Any]) -> Any:
        if any(isinstance(each, (Unknown, Made, DottedName)) for each in given):
            return UNKNOWN
        try:
            found = how(*given)
        except Exception:  # of values that may be anything
            return UNKNOWN
        return UNKNOWN if _is_large(found) else found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _is_small(value: Any) -> bool:
    return _is_number(value) and abs(value) <= 64


def _is_large(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return abs(value) > MOST_NUMBER
    return isinstance(value, (str, list, tuple, dict)) and len(value) > MOST_TEXT
