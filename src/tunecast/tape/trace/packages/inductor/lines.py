"""Whose work a line of compiled code is.

Inductor's generated Python has forgotten modules, but its line map has not: it names for every line the graph node it
came from, and the node carries the modules it was called in (also in the backward graph) and the line of source.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.packages.inductor.replacing import replace
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.scopes import LIBRARY_FOLDERS, TORCH_FOLDER, TRACER_FOLDER, Scopes

STACK_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class OpPlace(NamedTuple):
    modules: tuple[int, ...]
    """Identities of the modules around the operation, outermost first."""
    source: str


_places: dict[str, tuple[list[int], list[OpPlace]]] = {}
"""For each generated file the first lines of its stretches, and where each came from."""


def install(recorder: Recorder) -> None:
    follow(recorder.scopes)
    after_import("torch._inductor.graph", remember_lines)


def remember_lines(module: ModuleType) -> None:
    """Keep the line map of what is generated."""

    def with_lines(generate: Callable[..., Any]) -> Callable[..., Any]:
        def codegen(self: Any) -> Any:
            result = generate(self)
            self._tunecast_lines = [(line, place_of(node)) for line, node in result[0].line_map]
            return result

        return codegen

    def with_file(load: Callable[..., Any]) -> Callable[..., Any]:
        def compile_to_module(self: Any) -> Any:
            loaded = load(self)
            stretches = getattr(self, "_tunecast_lines", [])
            if stretches and getattr(loaded, "__file__", None):
                _places[loaded.__file__] = ([line for line, _ in stretches], [place for _, place in stretches])
            return loaded

        return compile_to_module

    replace(module.GraphLowering, "codegen", with_lines)
    replace(module.GraphLowering, "compile_to_module", with_file)


def place_of(node: Any) -> OpPlace:
    """The keys of a node's module stack are identities, with `@n` behind them at the n-th call."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    keys = [str(key).partition("@")[0] for key in stack]
    lines = STACK_LINE.findall(node.stack_trace or "")
    return OpPlace(tuple(int(key) for key in keys if key.isdigit()), ":".join(lines[-1]) if lines else "")


def follow(scopes: Scopes) -> None:
    """While compiled code runs, its lines say which module and which line of source is at work."""
    current, source = scopes.current, scopes.source

    def module_at_work() -> str | None:
        here = current_place()
        named = [scopes._names[module] for module in here.modules if module in scopes._names] if here else []
        return named[-1] if named else current()

    def line_at_work() -> str:
        here = current_place()
        if here is None:
            return source()
        if not scopes.in_forward():
            return f"{here.source} (backward)" if here.source else ""
        user = user_line()
        return f"{user} > {here.source}" if user and user != here.source else here.source

    scopes.current, scopes.source = module_at_work, line_at_work  # type: ignore[method-assign]


def current_place() -> OpPlace | None:
    frame: Any = sys._getframe(1) if _places else None
    while frame is not None:
        found = _places.get(frame.f_code.co_filename)
        if found is not None:
            stretch = bisect.bisect_right(found[0], frame.f_lineno) - 1
            return found[1][stretch] if stretch >= 0 else None
        frame = frame.f_back
    return None


def user_line() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _places and not file.startswith((*LIBRARY_FOLDERS, TORCH_FOLDER, TRACER_FOLDER, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
