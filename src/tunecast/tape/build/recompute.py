"""Recomputation on paper: both of torch's kinds of checkpointing (torch/utils/checkpoint.py)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Holder, Node, finish, run_engine, start
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor


class Recomputed(Exception):
    """All that was missing has been computed; the rest of the forward is not needed."""


class CheckpointFrame:
    """One checkpointed call (torch/utils/checkpoint.py, `_CheckpointFrame`, use_reentrant=False)."""

    def __init__(self, machine: Machine, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.machine, self.function = machine, function
        hooks = machine.pack_hooks  # the inputs are saved as any tensor outside is
        self.args = [hooks[-1](given) if hooks and isinstance(given, Tensor) else given for given in args]
        self.histories = [(t.requires_grad, t.node, t.number) if isinstance(t, Tensor) else None for t in args]
        self.autocast = machine.autocast
        self.module = machine.module
        self.holders: list[Any] = []
        self.found: dict[int, Tensor] = {}
        self.is_recomputed = False

    def pack(self, tensor: Tensor) -> Holder:
        self.machine.hook()
        holder = Holder(self, len(self.holders))
        self.holders.append(weakref.ref(holder))
        return holder

    def recompute(self) -> None:
        self.is_recomputed = True
        machine, count = self.machine, 0
        args = [given.tensor() if isinstance(given, Holder) else given for given in self.args]
        for given, history in zip(args, self.histories, strict=True):
            if history is not None:
                given.requires_grad, given.node, given.number = history

        def keep(tensor: Tensor) -> Tensor:
            nonlocal count
            machine.hook()
            kept = tensor.detach() if tensor.requires_grad else tensor
            if self.holders[count]() is not None:
                self.found[count] = kept
            count += 1
            if count == len(self.holders):
                raise Recomputed
            return kept

        before = machine.module, machine.in_forward, machine.grad_enabled
        machine.module, machine.in_forward, machine.grad_enabled = self.module, True, True
        machine.redone += 1
        machine.pack_hooks.append(keep)
        try:
            with machine.autocasting(self.autocast):
                self.function(*args)
        except Recomputed:
            pass
        finally:
            machine.pack_hooks.pop()
            machine.module, machine.in_forward, machine.grad_enabled = before


def checkpoint(machine: Machine, function: Callable[..., Any], *args: Any) -> Any:
    if machine.graph is not None:
        return machine.graph.checkpointed(function, args)
    frame = CheckpointFrame(machine, function, args)
    machine.saved += 1
    machine.pack_hooks.append(frame.pack)
    try:
        return function(*args)
    finally:
        machine.pack_hooks.pop()


def checkpoint_reentrant(machine: Machine, function: Callable[..., Any], *args: Any) -> Any:
    """torch/utils/checkpoint.py, `CheckpointFunction` (use_reentrant=True): a forward pass without history; backward
    runs it whole once more and takes the gradients through it at once, while its own frame still holds the gradient
    that came in, the inputs and the outputs."""
    if machine.graph is not None:  # to a compiler both kinds are one
        return machine.graph.checkpointed(function, args)
    tensors = [place for place, given in enumerate(args) if isinstance(given, Tensor)]
    plain: list[Any] = [None if place in tensors else given for place, given in enumerate(args)]
    autocast, module = machine.autocast, machine.module

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        detached_inputs = list(plain)
        for number, place in enumerate(tensors):
            detached_inputs[place] = node.take(number).detach()
            detached_inputs[place].requires_grad = node.needs[number]
        machine.module, machine.in_forward, machine.grad_enabled = module, True, True
        machine.redone += 1
        with machine.autocasting(autocast):
            outputs = function(*detached_inputs)
        machine.in_forward, machine.grad_enabled = False, False
        run_engine(first_of(outputs).node, gradients[0])
        machine.node = node  # else the recomputed graph would live on
        return [detached_inputs[place].grad for place in tensors]

    inputs = [args[place] for place in tensors]
    node = start(machine, inputs, back)
    machine.saved += 1
    with machine.no_grad():
        outputs = function(*args)
    finish(node, first_of(outputs), *inputs)
    return outputs


def first_of(outputs: Any) -> Any:
    """Of a layer that gives more than its hidden states."""
    return outputs[0] if isinstance(outputs, tuple) else outputs
