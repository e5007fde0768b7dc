"""Saved tensors that wait in host memory, on paper: torchtune's `OffloadActivations` with streams
(torchtune/training/_activation_offloading.py of 0.6.1; TRL's class descends from it).

What is saved is copied out while the forward pass goes on, so the last few stay until their copies are made. In the
backward pass each comes back when its node asks for it, and stays until the next such node is done: the copy runs on
a stream of its own, and nothing else would keep the memory from being given away meanwhile. That stream's own pool of
the allocator is left out here: what comes back is taken from the default one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.autograd import Holder, Node
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.views import kept_strides
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import FROM_HOST, TO_HOST

LAST_STAY = 5
"""`max_fwd_stash_size`."""
SMALLEST = 1024
"""`min_offload_size`, bytes."""
OUT = 9
"""The stream copies leave on. What comes back is waited for at once."""


class Away(Holder):
    """Stands for a saved tensor: `kept` here, or, where that is None, on the host."""

    __slots__ = ("dtype", "kept", "number", "offload", "shape", "strides")

    def __init__(self, offload: Offload, number: int, tensor: Tensor, stays: bool) -> None:
        self.offload, self.number = offload, number
        self.shape, self.dtype, self.strides = tensor.shape, tensor.dtype, kept_strides(tensor)
        self.kept = tensor if stays else None

    def tensor(self) -> Tensor:
        return self.offload.unpack(self)


class Offload:
    def __init__(self, machine: Machine, parameters: Sequence[Tensor]) -> None:
        """Parameters stay. A view of one, such as the transposed weight a product saves, leaves like any tensor."""
        self.machine = machine
        self.parameters = {id(parameter) for parameter in parameters}
        self.count = 0
        self.leaving: dict[int, Tensor] = {}
        """Being copied out: `fwd_stash`."""
        self.returned: dict[int, Tensor] = {}
        """`bwd_tensor_stash`."""
        self.node: Node | None = None
        self.in_forward = True

    def active(self) -> contextlib.AbstractContextManager[None]:
        return self.machine.packing(self.pack)

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """`NoOpManager`: what the head saves stays."""
        return self.machine.packing(lambda tensor: tensor)

    def pack(self, tensor: Tensor) -> Away:
        self.in_forward = True
        self.count += 1
        if tensor.nbytes < SMALLEST or id(tensor) in self.parameters:
            return Away(self, self.count, tensor, stays=True)
        machine, through = self.machine, [number for number in self.leaving if number <= self.count - LAST_STAY]
        if through:
            machine.wait(OUT)
        for number in through:
            del self.leaving[number]
        self.leaving[self.count] = tensor
        here = machine.stream
        with machine.on_stream(OUT):
            machine.wait(here)
            machine.launch(TO_HOST, (tensor,), tensor.dtype, 0)
        return Away(self, self.count, tensor, stays=False)

    def unpack(self, away: Away) -> Tensor:
        machine, number = self.machine, away.number
        if self.in_forward:
            machine.after_backward.append(self.returned.clear)
            self.in_forward = False
        if away.kept is not None:
            tensor, away.kept = away.kept, None
            return tensor
        previous: list[int] = []
        if self.node is not machine.node:
            self.node = machine.node
            previous = list(self.returned)
        brought_back = number not in self.leaving
        if brought_back:
            tensor = machine.run(FROM_HOST, (), away.shape, away.dtype, strides=away.strides)
            self.returned[number] = tensor
        else:
            tensor = self.leaving[number]

        def hook() -> None:
            if brought_back and in_use(self.returned, number):
                del self.returned[number]
            self.leaving.clear()
            for earlier in previous:
                del self.returned[earlier]

        assert machine.node is not None
        machine.node.hooks += (hook,)
        return tensor


def in_use(returned: dict[int, Any], number: int) -> bool:
    """Whether anybody but this table holds the memory: then it is handed over."""
    tensor = returned[number]
    return sys.getrefcount(tensor) > 3 or sys.getrefcount(tensor.storage) > 2
