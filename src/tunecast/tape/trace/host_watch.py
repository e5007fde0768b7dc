"""What the host does between operations and only time asks for: modules it calls, autograd's nodes, checkpointing.

The closed form notes the same of the jobs it builds (tape/build/event_log.py, `HostNotes`), and the host's price list
(prediction/price/host.py) is of these pieces: without them a step that waits for its host looks two to three times as
fast as it is. Each is noted with the next operation.

    calls      every `Module.__call__`
    nodes      the engine takes the node with the highest sequence number first: those above the node at work were done
    saved      a checkpointed call begins; redone: it runs again
    hooks      Python is called about a saved tensor (`saved_tensors_hooks`)
    passes     a model of transformers is called from outside any other

Ignored  gradients that are let go, and what the Trainer does around a step.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from tunecast.tape.op import CALLS, CHECKPOINT, HOOK, NODES, PASS, RECOMPUTE, TENSORS, Op

MODEL_CLASS = "PreTrainedModel"
ACCUMULATION = 2**63
"""Nodes that add up gradients carry the highest sequence number, and are not counted."""
Backward = Callable[..., Any]


class HostWatch:
    """Counts of this process, since the operation before."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys((CHECKPOINT, RECOMPUTE, CALLS, NODES, TENSORS), 0)
        self._hooks = self._passes = 0
        self._models: list[int] = []
        self._backwards: list[list[int]] = []
        """Of each backward pass that runs, the sequence numbers of its nodes that were not counted yet, ascending."""
        self._lock = threading.Lock()

    def install(self) -> None:
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)
        self._watch_backward()
        self._watch_checkpoints()

    def take(self, module: str, tensors: int) -> list[Op]:
        """What was done since the operation before, as operations of no kernels. `tensors`: how many its lists hold."""
        with self._lock:
            self._counts[TENSORS] += tensors
            self._count_nodes()
            found = [
                *[Op(PASS, module, kernels=0)] * self._passes,
                *[Op(HOOK, module, kernels=0)] * self._hooks,
                *(Op(name, module, kernels=0, shapes=((count,),)) for name, count in self._counts.items() if count),
            ]
            self._hooks = self._passes = 0
            self._counts = dict.fromkeys(self._counts, 0)
        return found

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        with self._lock:
            self._counts[CALLS] += 1
            if is_model(module):
                self._passes += not self._models
                self._models.append(id(module))

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if self._models and self._models[-1] == id(module):
            self._models.pop()

    def _count_nodes(self) -> None:
        node = torch._C._current_autograd_node() if self._backwards else None
        if node is None or (sequence := node._sequence_nr()) >= ACCUMULATION:
            return
        waiting = self._backwards[-1]
        done = bisect.bisect_left(waiting, sequence)
        self._counts[NODES] += len(waiting) - done
        del waiting[done:]

    def _watch_backward(self) -> None:
        import torch.autograd.graph as graph

        run = graph._engine_run_backward

        @wraps(run)
        def _engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._backwards.append(sequence_numbers(outputs))
            try:
                return run(outputs, *args, **kwargs)
            finally:
                with self._lock:
                    self._counts[NODES] += len(self._backwards.pop())

        for place in (graph, torch.autograd):
            place._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]

    def _watch_checkpoints(self) -> None:
        """torch/utils/checkpoint.py: `checkpoint` begins a frame or applies its function; to recompute, hooks of their
        own are put on, or the function's backward runs."""
        import torch.utils.checkpoint as checkpoint

        self._before(checkpoint._CheckpointFrame, "__init__", lambda: self._count(CHECKPOINT))
        self._before(checkpoint._recomputation_hook, "__init__", lambda: self._count(RECOMPUTE))
        self._before(torch.autograd.graph.saved_tensors_hooks, "__init__", lambda: None, hooks=True)

    def _before(self, owner: Any, name: str, note: Callable[[], None], *, hooks: bool = False) -> None:
        function = getattr(owner, name)

        @wraps(function)
        def noted(instance: Any, *args: Any, **kwargs: Any) -> Any:
            note()
            if hooks:
                args = tuple(map(self._with_count, args))
                kwargs = {key: self._with_count(value) for key, value in kwargs.items()}
            return function(instance, *args, **kwargs)

        setattr(owner, name, noted)

    def _with_count(self, hook: Any) -> Any:
        if not callable(hook):
            return hook

        @wraps(hook)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._hooks += 1
            return hook(*args, **kwargs)

        return counted


def is_model(module: torch.nn.Module) -> bool:
    return any(each.__name__ == MODEL_CLASS for each in type(module).__mro__)


def sequence_numbers(outputs: Any) -> list[int]:
    """Of the nodes behind these tensors, but those that add up gradients; ascending."""
    waiting = [each.grad_fn for each in outputs if getattr(each, "grad_fn", None) is not None]
    seen = set(waiting)
    found = []
    while waiting:
        node = waiting.pop()
        sequence = node._sequence_nr()
        if sequence < ACCUMULATION:
            found.append(sequence)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return sorted(found)
