"""What statements assign, define and call. Where a condition is not known its body is taken, and what it leaves to
`else` is looked through before."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.recipes.scripts import parsers
from tunecast.job.recipes.scripts.expressions import Expressions, PythonFile
from tunecast.job.recipes.scripts.source import statements_of
from tunecast.job.recipes.scripts.values import UNKNOWN, DottedName, Made, Unknown

MOST_CALLS_DEEP = 8
MOST_CALLS = 20_000
MOST_MODULES = 16
SAME_OBJECT = frozenset({"to", "cuda", "train", "eval", "half", "bfloat16", "float", "requires_grad_", "cpu"})
"""Methods of a model that give it back."""


class Statements(Expressions):
    """Goes through a script once. `calls`: everything that was called and is not the script's own, in its order."""

    def __init__(self, values: Mapping[str, Any] | None = None, folder: Path | None = None) -> None:
        """`folder`: where modules that the script imports are looked for, its own; without one they stay unknown."""
        super().__init__()
        self.folder = folder
        self.modules: dict[str, PythonFile] = {}
        self.calls: list[Made] = []
        self.environment: dict[str, tuple[Any, int]] = {}
        self.values = dict(values or {})
        """What the command line sets: variables and arguments of these names."""
        self.used: set[str] = set()
        self.visited: set[ast.AST] = set()
        self.within: list[ast.AST] = []
        self.returned: list[Any] = []

    def run(self, statements: Iterable[ast.stmt]) -> None:
        body = list(statements)
        self.run_all(body)
        for function in list(self.module.functions.values()):  # called by a launcher, or by nobody
            if function not in self.visited:
                self.enter(function, [], {}, self.module)

    def run_all(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        how = getattr(self, f"do_{type(node).__name__.lower()}", None)
        if how is not None:
            how(node)

    # what is defined

    def do_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.read_module(alias.name)
            self.module.imports[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def do_importfrom(self, node: ast.ImportFrom) -> None:
        self.read_module(node.module or "")
        for alias in node.names:
            self.module.imports[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"

    def read_module(self, name: str) -> None:
        """One that lies beside the script, as `python FILE` finds it; what it calls as it is imported is not run."""
        if self.folder is None or not name or name in self.modules or len(self.modules) >= MOST_MODULES:
            return
        path = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        try:
            if not path.is_file():
                return
            statements = statements_of(path)
        except (OSError, TunecastError):
            return
        self.modules[name] = PythonFile(str(path), name)
        before = self.module, self.scopes
        self.module, self.scopes = self.modules[name], [self.modules[name].scope]
        self.run_all(statements)
        self.module, self.scopes = before

    def owner(self, name: str) -> tuple[PythonFile, str]:
        """The module whose name it is, and how it is called there."""
        for _ in range(MOST_MODULES):
            within, _, last = name.rpartition(".")
            if within not in self.modules:
                break
            module = self.modules[within]
            if last not in module.imports:
                return module, last
            name = module.imports[last]
        return self.module, name

    def imported(self, name: str) -> Any:
        module, last = self.owner(name)
        return module.scope[last] if module is not self.module and last in module.scope else DottedName(name)

    def do_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.module.functions[node.name] = node

    do_asyncfunctiondef = do_functiondef

    def do_classdef(self, node: ast.ClassDef) -> None:
        self.module.classes[node.name] = node

    # what is assigned

    def do_assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value)

    def do_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def do_augassign(self, node: ast.AugAssign) -> None:
        self.assign(node.target, self._computed(type(node.op), self.value(node.target), self.value(node.value)))

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.scopes[-1][target.id] = self.chosen(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            many = value if isinstance(value, (list, tuple)) else [value] if isinstance(value, Made) else []
            for number, each in enumerate(target.elts):
                self.assign(each, many[number] if number < len(many) else UNKNOWN)
        elif isinstance(target, ast.Attribute):
            of = self.value(target.value)
            if isinstance(of, Made):
                of.give(target.attr, value, target.lineno)
        elif isinstance(target, ast.Subscript):
            self.assign_item(target, value)

    def assign_item(self, target: ast.Subscript, value: Any) -> None:
        key = self.value(target.slice)
        if self.dotted(target.value) in ("os.environ", "environ") and isinstance(key, str):
            self.environment[key] = (value, target.lineno)
            return
        of = self.value(target.value)
        if isinstance(of, dict):
            is_place = isinstance(key, (str, int))
        else:
            is_place = isinstance(of, list) and isinstance(key, int) and 0 <= key < len(of)
        if is_place:
            of[key] = value

    def chosen(self, name: str, value: Any) -> Any:
        """The command line's value where it has one of this name, and the script a plain one."""
        if name in self.values and not isinstance(value, Made):
            self.used.add(name)
            return self.values[name]
        return value

    # what is run

    def do_expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def do_return(self, node: ast.Return) -> None:
        self.returned.append(self.value(node.value))

    def do_if(self, node: ast.If) -> None:
        test = self.value(node.test)
        if isinstance(test, (Unknown, DottedName)):
            self.run_all(node.orelse)
            self.run_all(node.body)
        else:
            self.run_all(node.body if test else node.orelse)

    def do_for(self, node: ast.For | ast.AsyncFor) -> None:
        """Once, with the first item."""
        items = self.value(node.iter)
        first = items[0] if isinstance(items, (list, tuple)) and items else UNKNOWN
        self.assign(node.target, first)
        self.run_all(node.body)

    do_asyncfor = do_for

    def do_while(self, node: ast.While) -> None:
        self.value(node.test)
        self.run_all(node.body)

    def do_with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
        self.run_all(node.body)

    do_asyncwith = do_with

    def do_try(self, node: ast.Try) -> None:
        self.run_all(node.body)
        self.run_all(node.orelse)
        self.run_all(node.finalbody)

    do_trystar = do_try

    def do_match(self, node: ast.Match) -> None:
        self.value(node.subject)

    # what is called

    def call(self, node: ast.Call) -> Any:
        receiver = None
        name = self.dotted(node.func)
        if isinstance(node.func, ast.Attribute):
            of = self.value(node.func.value)
            if isinstance(of, Made):
                receiver, name = of, node.func.attr
        made = Made(name, node.lineno, receiver)
        made.file = self.module.file
        self.give_all(made, node)
        module, own = self.owner(name)
        if own in module.functions and receiver is None:
            return self.enter(module.functions[own], made.positional, made.arguments, module)
        if own in module.classes and receiver is None:
            self.instance(made, own, module)
        if receiver is not None:
            return self.method(made, receiver)
        if len(self.calls) < MOST_CALLS:
            self.calls.append(made)
        return made

    def _lambda(self, node: ast.Lambda) -> Any:
        """What it calls, once, with arguments that nobody knows."""
        arguments = node.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        self.scopes.append({**self.scopes[-1], **dict.fromkeys(names, UNKNOWN)})
        try:
            self.value(node.body)
        finally:
            self.scopes.pop()
        return UNKNOWN

    def give_all(self, made: Made, node: ast.Call) -> None:
        for each in node.args:
            if isinstance(each, ast.Starred):
                made.is_open = True
            else:
                made.positional.append(self.value(each))
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                made.give(keyword.arg, self.chosen(keyword.arg, value), keyword.value.lineno)
            elif isinstance(value, Mapping):
                for name, inner in value.items():
                    made.give(str(name), self.chosen(str(name), inner), keyword.value.lineno)
            else:
                made.is_open = True

    def method(self, made: Made, receiver: Made) -> Any:
        if made.name == "add_argument" and receiver.is_a(*parsers.PARSERS, "add_argument_group"):
            parser = receiver if receiver.receiver is None else receiver.receiver
            parsers.add_argument(parser, made)
            self.override(parser)
            return None
        if made.name == "add_argument_group":
            return made
        if made.name == "set_defaults" and receiver.is_a(*parsers.PARSERS):
            parsers.set_defaults(receiver, made.arguments, made.line)
            return None
        if made.name in parsers.PARSES and receiver.is_a(*parsers.PARSERS):
            parsed = parsers.namespace(receiver, made.line)
            return (parsed, UNKNOWN) if made.name == "parse_known_args" else parsed
        if made.name in parsers.PARSES_DATACLASSES and receiver.is_a(*parsers.DATACLASS_PARSERS):
            return self.dataclasses(receiver)
        if len(self.calls) < MOST_CALLS:
            self.calls.append(made)
        return receiver if made.name in SAME_OBJECT else made

    def override(self, made: Made) -> None:
        for name in made.arguments:
            made.arguments[name] = self.chosen(name, made.arguments[name])

    def dataclasses(self, parser: Made) -> Any:
        """One of each class the parser was given. A class of a library gets what none of the script's own has."""
        kinds = parser.get("dataclass_types", 0)
        made: list[Made] = []
        fields: set[str] = set()
        for kind in kinds if isinstance(kinds, (list, tuple)) else [kinds]:
            one = Made(str(kind), parser.line)
            one.file = parser.file
            module, own = self.owner(str(kind)) if isinstance(kind, DottedName) else (self.module, "")
            if own in module.classes:
                self.instance(one, own, module)
                fields.update(one.lines)
            made.append(one)
        for one in made:
            if not (one.name in self.module.classes or self.owner(one.name)[0] is not self.module):
                self.fill(one, fields)
            self.calls.append(one)
        return tuple(made)

    def fill(self, one: Made, taken: set[str]) -> None:
        """What the command line says of a class whose fields its library knows."""
        known = next((names for name, names in parsers.FIELDS.items() if one.is_a(name)), None)
        others = {name for names in parsers.FIELDS.values() for name in names} if known is None else set()
        for name, value in self.values.items():
            if name not in taken and (name in known if known is not None else name not in others):
                self.used.add(name)
                one.give(name, value, 0)

    def instance(self, made: Made, own: str, module: PythonFile) -> None:
        """Of a class of the script's: the defaults of its fields, and the name of what it is made of."""
        node = module.classes[own]
        for base in node.bases:
            within, name = self.owner(self.dotted(base))
            if name in within.classes and within.classes[name] is not node and len(self.within) < MOST_CALLS_DEEP:
                self.within.append(node)
                self.instance(made, name, within)
                self.within.pop()
            elif name:
                made.name = name
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name, value = statement.target.id, self.default_of(statement.value)
                if name not in made.lines and (statement.value is not None or name in self.values):
                    made.give(name, self.chosen(name, value), statement.lineno)

    def default_of(self, node: ast.expr | None) -> Any:
        """Of `field(default=...)`, or the value itself."""
        if isinstance(node, ast.Call) and self.dotted(node.func).rpartition(".")[2] in ("field", "Field"):
            given = {each.arg: each.value for each in node.keywords}
            if "default" in given:
                return self.value(given["default"])
            factory = given.get("default_factory")
            return self.value(factory.body) if isinstance(factory, ast.Lambda) else UNKNOWN
        return self.value(node)

    def enter(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, positional: list[Any], named: Mapping[str, Any],
        module: PythonFile,
    ) -> Any:  # fmt: skip
        """What a function of the script's gives back; its defaults stand for what it is not given."""
        self.visited.add(function)
        if len(self.within) >= MOST_CALLS_DEEP or function in self.within:
            return UNKNOWN
        around = self.module, self.scopes
        self.module, self.scopes = module, [module.scope]
        arguments = function.args
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        scope: dict[str, Any] = dict.fromkeys((*names, *(each.arg for each in arguments.kwonlyargs)), UNKNOWN)
        defaults = zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True)
        only = zip((each.arg for each in arguments.kwonlyargs), arguments.kw_defaults, strict=True)
        scope.update(
            {name: self.chosen(name, self.value(node)) for name, node in (*defaults, *only) if node is not None}
        )
        scope.update(zip(names, positional, strict=False))
        scope.update({name: value for name, value in named.items() if name in scope})
        if arguments.kwarg is not None:
            scope[arguments.kwarg.arg] = {name: value for name, value in named.items() if name not in scope}
        before, self.returned = self.returned, []
        self.scopes.append(scope)
        self.within.append(function)
        try:
            self.run_all(function.body)
            return self.returned[-1] if self.returned else None
        finally:
            self.within.pop()
            self.module, self.scopes = around
            self.returned = before
