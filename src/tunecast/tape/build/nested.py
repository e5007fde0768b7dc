"""Tensors in the tuples and dictionaries that modules take and give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tunecast.tape.build.autograd import Backward, start
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


def map_tensors(change: Callable[[Any], Any], value: Any, kind: type = Tensor) -> Any:
    """The same structure with every tensor, or what stands for one, changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, part, kind) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(change, part, kind) for part in value)
    if isinstance(value, dict):
        return {name: map_tensors(change, part, kind) for name, part in value.items()}
    return value


def watched(machine: Machine, value: Any, done: Backward) -> Any:
    """The same with a history of its own: when the gradients of all its tensors are there, `done` runs and hands them
    on."""
    tensors = [tensor for tensor in tensors_in(value) if tensor.requires_grad]
    node = start(machine, tensors, done) if tensors else None
    if node is None:
        return value
    node.outputs = len(tensors)
    passed: dict[int, Tensor] = {}
    for number, tensor in enumerate(tensors):
        same = tensor.alias(tensor.shape, tensor.strides)
        same.node, same.number, same.requires_grad = node, number, True
        passed[id(tensor)] = same
    return map_tensors(lambda tensor: passed.get(id(tensor), tensor), value)
