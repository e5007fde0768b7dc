"""Recomputation on paper: both of torch's kinds of checkpointing (torch/utils/checkpoint.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tunecast.tape.build.autograd import CheckpointFrame, Gradients, Node, finish, run_engine, start
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor


@contextmanager
def recomputing(
    machine: Machine, function: Callable[..., Any], args: tuple[Any, ...], stops_early: bool = True
) -> Iterator[None]:
    """While `function(*args)` runs: of what it saves for its gradients nothing is kept, it will be computed again."""
    if machine.graph is not None:
        with machine.graph.checkpointing():
            yield
        return
    frame = CheckpointFrame(machine, function, args)
    frame.stops_early = stops_early
    machine.saved += 1
    machine.pack_hooks.append(frame.pack)
    try:
        yield
    finally:
        machine.pack_hooks.pop()


def checkpoint(machine: Machine, function: Callable[..., Any], *args: Any) -> Any:
    with recomputing(machine, function, args):
        return function(*args)


def checkpoint_reentrant(machine: Machine, function: Callable[..., Any], *args: Any) -> Any:
    """torch/utils/checkpoint.py, `CheckpointFunction` (use_reentrant=True): a forward pass without history; backward
    runs it whole once more and takes the gradients through it at once, while its own frame still holds the gradient
    that came in, the inputs and the outputs."""
    if machine.graph is not None:  # to a compiler both kinds are one
        return checkpoint(machine, function, *args)
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
