"""Where in the user's program the trace stands: module, phase, optimizer step, line of code.

Forward, the module is the innermost one whose `forward` runs. Backward, autograd names the node it executes; every
node carries the sequence number of the forward call that made it, and the numbers at which modules began are kept,
so the node's module is found again. Recomputation runs real forwards inside the backward pass.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tunecast.tape.op import Phase

LIBRARY_FOLDERS = tuple({
    *(str(Path(sysconfig.get_path(kind))) for kind in ("stdlib", "purelib", "platlib")),
    *(folder for folder in sys.path if folder.endswith(("/site-packages", "/dist-packages"))),
})  # fmt: skip
"""Of this environment, of the user's site and of environments that it includes."""
TORCH_FOLDER = str(Path(torch.__file__).parent)
TRACER_FOLDER = str(Path(__file__).parent)
TORCHS, LIBRARYS, USERS = "torch", "library", "user"
NO_SEQUENCE = 2**63
"""Accumulation nodes carry the highest number: they belong to no forward call."""


def in_backward() -> bool:
    """Whether this thread is at work on a backward pass, its own or as one of the engine's."""
    return bool(torch._C._current_graph_task_id() != -1)


class ThreadScopes:
    """Modules running on one thread, and the sequence numbers at which the innermost one changed."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.changed_at: list[int] = []
        self.changed_to: list[str] = []
        self.source_at: dict[int, str] = {}

    def mark(self) -> None:
        sequence = torch._C._autograd._get_sequence_nr()
        name = self.running[-1] if self.running else ""
        if self.changed_at and self.changed_at[-1] == sequence:
            self.changed_to[-1] = name
        else:
            self.changed_at.append(sequence)
            self.changed_to.append(name)

    def at(self, sequence: int) -> str:
        position = bisect.bisect_right(self.changed_at, sequence) - 1
        return self.changed_to[position] if position >= 0 else ""


class Scopes:
    def __init__(self) -> None:
        self.on_forward: list[Callable[[torch.nn.Module], None]] = []
        self.on_backward_end: list[Callable[[], None]] = []
        self.on_optimizer_end: list[Callable[[torch.optim.Optimizer], None]] = []
        self._counting = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """As before the first model was loaded."""
        self.phase = Phase.LOAD
        self.step = 0
        self.steps_done = 0
        self._steps_in_parts = False
        self._stepped_inside = False
        """In a backward pass optimizers took steps, one for each parameter for example (hooks on gradients)."""
        self.roots: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._names: dict[int, str] = {}
        self._head: set[str] = set()
        self._threads: dict[int, ThreadScopes] = {}
        self._backward_callers: list[int] = []
        self._step_is_marked = False
        self.stepping_threads: set[int] = set()
        """Those that take optimizer steps, outside backward passes."""

    # ------------------------------------------------------------------ hooks into torch

    def install(self) -> None:
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)
        register_optimizer_step_pre_hook(self._optimizer_begins)
        register_optimizer_step_post_hook(self._optimizer_ends)
        import torch.autograd.graph as graph

        run_backward = self.run_backward = graph._engine_run_backward

        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            self._backward_callers.append(threading.get_ident())
            outermost = len(self._backward_callers) == 1
            if outermost and self.phase is not Phase.LOAD:
                self.phase = Phase.BACKWARD
            try:
                return run_backward(*args, **kwargs)
            finally:
                self._backward_callers.pop()
                if outermost and self.phase is not Phase.LOAD:
                    for action in self.on_backward_end:
                        action()
                    self.phase = Phase.OTHER
                    self._count_step_inside()

        for module in (graph, torch.autograd):
            module._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]

    def begin_step(self) -> None:
        """The program says itself where a step begins (before its batch is made)."""
        self.step = self.steps_done
        self.phase = Phase.OTHER
        self._step_is_marked = True

    def _thread(self) -> ThreadScopes:
        return self._threads.setdefault(threading.get_ident(), ThreadScopes())

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        thread = self._thread()
        if not thread.running and not self._backward_callers:
            self._enter_root(module)
        thread.running.append(self._names.get(id(module), type(module).__name__))
        thread.mark()

    def _enter_root(self, module: torch.nn.Module) -> None:
        is_new = id(module) not in {id(root) for root in self.roots}
        if is_new:
            self.roots.append(module)
            self._name_modules(module)
        begins = self.phase is not Phase.FORWARD
        if (begins or is_new) and torch.is_grad_enabled():
            for action in self.on_forward:
                action(module)
        if begins and torch.is_grad_enabled():
            self.phase = Phase.FORWARD
            if not self._step_is_marked:
                self.step = self.steps_done

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        thread = self._thread()
        if thread.running:
            thread.running.pop()
        thread.mark()

    def _name_modules(self, root: torch.nn.Module) -> None:
        """Children by their path; the root by its class. Whatever surrounds the output embedding is the head."""
        for name, module in root.named_modules():
            self._names[id(module)] = name or type(root).__name__
        output = next((m for m in map(output_embedding, root.modules()) if m is not None), None)
        if output is None or id(output) not in self._names:
            return
        path = self._names[id(output)]
        self._head |= {path, type(root).__name__}
        while "." in path:
            path = path.rpartition(".")[0]
            self._head.add(path)

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
        if not in_backward():
            self.phase = Phase.OPTIMIZER

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for action in self.on_optimizer_end:
            action(optimizer)
        if in_backward():
            self._stepped_inside = True
        else:
            self.phase = Phase.OTHER
            self.stepping_threads.add(threading.get_ident())
            with self._counting:
                self.steps_done += not self._steps_in_parts

    def _count_step_inside(self) -> None:
        """A backward pass in which optimizers step is one step of a script that takes none outside."""
        self.steps_done += self._stepped_inside and not self.stepping_threads
        self._stepped_inside = False

    @contextlib.contextmanager
    def one_step(self) -> Iterator[None]:
        """However often an optimizer steps inside, each time on some of the parameters, it is one step."""
        self._steps_in_parts = True
        try:
            yield
        finally:
            self._steps_in_parts = False
        self.steps_done += 1

    @contextlib.contextmanager
    def generating(self) -> Iterator[None]:
        """The model writes completions; what follows, until it trains, scores them."""
        self.phase = Phase.GENERATE
        if not self._step_is_marked:
            self.step = self.steps_done
        yield
        self.phase = Phase.SCORE

    # ------------------------------------------------------------------ questions

    def current(self) -> str | None:
        """The module at work; None outside any (then its data says whose it is)."""
        thread = self._threads.get(threading.get_ident())
        if thread is not None and thread.running:
            return thread.running[-1]
        node = torch._C._current_autograd_node() if self._backward_callers else None
        if node is not None:
            sequence = node._sequence_nr()
            caller = self._threads.get(self._backward_callers[-1])
            return caller.at(sequence) if caller is not None and sequence < NO_SEQUENCE else None
        return "" if self.phase is Phase.FORWARD else None

    def name_of(self, module: torch.nn.Module) -> str:
        return self._names.get(id(module), type(module).__name__)

    def set_name(self, module: torch.nn.Module, name: str) -> None:
        """Of one that is no part of a model that was called: a replica."""
        self._names[id(module)] = name

    def in_forward(self) -> bool:
        """A forward or recomputation runs, as opposed to a gradient formula."""
        thread = self._threads.get(threading.get_ident())
        return self.phase is Phase.FORWARD or (thread is not None and bool(thread.running))

    def computes_gradients(self) -> bool:
        """Of a backward pass what recomputes nothing: checkpoints run forward passes again, with gradients enabled."""
        thread = self._threads.get(threading.get_ident())
        recomputes = torch.is_grad_enabled() or (thread is not None and bool(thread.running))
        return self.phase is Phase.BACKWARD and not recomputes

    def is_head(self, module: str) -> bool:
        return module in self._head or module == ""

    def source(self) -> str:
        """`train.py:31 > modeling_llama.py:175`: the user's line and the library's; backward, the forward's."""
        node = torch._C._current_autograd_node() if self._backward_callers else None
        if node is not None and not self.in_forward():
            caller = self._threads.get(self._backward_callers[-1])
            made_by = caller.source_at.get(node._sequence_nr(), "") if caller is not None else ""
            return f"{made_by} (backward)" if made_by else ""
        text = calling_lines()
        self._thread().source_at[torch._C._autograd._get_sequence_nr()] = text
        self._thread().source_at[torch._C._autograd._get_sequence_nr() - 1] = text
        return text


def output_embedding(module: torch.nn.Module) -> torch.nn.Module | None:
    finder = getattr(module, "get_output_embeddings", None)
    if finder is None:
        return None
    try:
        found = finder()
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return found if isinstance(found, torch.nn.Module) else None


@cache
def whose_file(file: str) -> str:
    """A library's, the user's, or torch's (with the tracer's own)."""
    if file.startswith((TORCH_FOLDER, TRACER_FOLDER, "<")):
        return TORCHS
    return LIBRARYS if file.startswith(LIBRARY_FOLDERS) else USERS


@cache
def shown_file(file: str) -> str:
    """From where the script is started, if it lies below: `models/net.py`, as the script itself is named."""
    return file.removeprefix(os.getcwd() + os.sep) if whose_file(file) is USERS else file


def calling_lines() -> str:
    """The innermost line outside torch, and the innermost one outside all installed packages, if that is another."""
    library = user = ""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        whose = whose_file(file)
        if whose is not TORCHS:
            if not library:
                library = f"{shown_file(file)}:{frame.f_lineno}"
            if whose is USERS:
                user = f"{shown_file(file)}:{frame.f_lineno}"
                break
        frame = frame.f_back
    if user and user != library:
        return f"{user} > {library}"
    return library
