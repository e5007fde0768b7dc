"""Where compiled code begins and ends: its module is named, the tracer's hooks are out of the compiler's sight, and
where the compiler cannot be followed the code runs as it was written, with a guess that says so."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as hooks

from tunecast.tape.trace.packages.inductor.replacing import missing, replace
from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    from torch._dynamo import eval_frame

    sight = Hooks()

    def compile_into_region(make: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(self: Any, function: Any) -> Any:
            compiled = make(self, function)
            if isinstance(function, (torch.nn.Module, type)):
                return compiled  # torch makes it again of the module's call
            return region(recorder, sight, function, compiled)

        return __call__

    def without_hooks(call: Callable[..., Any]) -> Callable[..., Any]:
        """`OptimizedModule` is a shell around the module; the module itself is named in the region."""

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            with sight.hidden():
                return call(self, *args, **kwargs)

        return __call__

    replace(eval_frame.OptimizeContext, "__call__", compile_into_region)
    replace(eval_frame.OptimizedModule, "__call__", without_hooks)


class Hooks:
    """The hooks by which the tracer follows modules. Dynamo would compile them into the graph, and guard on them."""

    def __init__(self) -> None:
        self._in_torch = (
            hooks._global_forward_pre_hooks, hooks._global_forward_hooks, hooks._global_forward_hooks_always_called
        )  # fmt: skip
        self._put_away: tuple[dict[Any, Any], ...] = ({}, {}, {})
        self._hidden = False

    def hidden(self) -> contextlib.AbstractContextManager[None]:
        return self._until_the_end(True)

    def in_place(self) -> contextlib.AbstractContextManager[None]:
        return self._until_the_end(False)

    @contextlib.contextmanager
    def _until_the_end(self, hidden: bool) -> Iterator[None]:
        change = self._hidden is not hidden
        if change:
            self._exchange()
        try:
            yield
        finally:
            if change:
                self._exchange()

    def _exchange(self) -> None:
        self._hidden = not self._hidden
        for here, there in zip(self._in_torch, self._put_away, strict=True):
            kept = dict(here)
            here.clear()
            here.update(there)
            there.clear()
            there.update(kept)


def region(recorder: Recorder, sight: Hooks, function: Callable[..., Any], compiled: Callable[..., Any]) -> Any:
    from torch._dynamo import exc
    from torch._dynamo.utils import counters

    scopes = recorder.scopes
    failure = ""

    @contextlib.contextmanager
    def inside(module: torch.nn.Module | None) -> Iterator[None]:
        if module is not None:
            scopes._enter(module, ())
        try:
            yield
        finally:
            if module is not None:
                scopes._leave(module, (), None)

    @functools.wraps(compiled)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal failure
        _folder_of_its_own()
        failure = failure or "; ".join(missing)
        if not failure:
            try:
                with sight.hidden(), inside(module_of(function, args)):
                    result = compiled(*args, **kwargs)
                if not counters["stats"]["unique_graphs"]:
                    recorder.guesses["torch.compile compiled nothing: traced as if it were not there"] += 1
                return result
            except exc.TorchDynamoException as error:
                failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        recorder.guesses[
            f"compiled code is traced as if it were not compiled, because the compiler of torch {torch.__version__} "
            f"cannot be followed here ({failure})"
        ] += 1
        with sight.in_place():
            return function(*args, **kwargs)

    return run


@functools.cache
def _folder_of_its_own() -> Any:
    """The compiler writes what it generates; it goes away with the process."""
    folder = tempfile.TemporaryDirectory(prefix="tunecast-compiled-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    return folder


def module_of(function: Callable[..., Any], args: tuple[Any, ...] = ()) -> torch.nn.Module | None:
    """The module a compiled function runs: its own, the one it wraps, or one it is given, closes over or names."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    code = getattr(function, "__code__", None)
    named = [getattr(function, "__globals__", {}).get(name) for name in getattr(code, "co_names", ())]
    candidates = (getattr(function, "__self__", None), getattr(function, "__wrapped__", None), *args, *cells, *named)
    module = next((c for c in candidates if isinstance(c, torch.nn.Module)), None)
    return getattr(module, "_orig_mod", module)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  a cell that is still empty raises
    except ValueError:
        return False
    return True
