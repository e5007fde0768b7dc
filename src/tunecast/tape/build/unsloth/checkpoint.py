"""`use_gradient_checkpointing="unsloth"` (unsloth_zoo/gradient_checkpointing.py, `UnslothCheckpointFunction`).

A layer runs without history and again in the backward pass. Its input waits on the host, unless it is small or the
layer is the last; one staging buffer brings it back, from the second step on two in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, run_engine, start
from tunecast.tape.build.dtypes import Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor

SMALLEST_OFFLOADED = 2 << 20
FIRST_BUFFER_NUMEL = 2 * 256 * 2048


class Offloading:
    def __init__(self, machine: Machine, dtype: Dtype) -> None:
        self.machine, self.dtype = machine, dtype
        self.buffers: list[Tensor] = []
        self.first_pass, self.doubled = True, False
        self.backward_pass = True
        self.last = self.current = self.slot = 0

    def __call__(self, path: str, function: Callable[[Tensor], Tensor], hidden_states: Tensor) -> Tensor:
        """What it does for a layer is put down to that layer, so that layers are alike."""
        machine = self.machine
        with machine.within(path):
            return self.checkpointed(machine.autocast, path, function, hidden_states)

    def checkpointed(
        self, autocast: Dtype | None, module: str, function: Callable[[Tensor], Tensor], hidden_states: Tensor
    ) -> Tensor:
        machine = self.machine
        slot: int | None = None
        shape = hidden_states.shape

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            args = gradients[0]
            self.backward_pass, self.first_pass, self.current = True, False, 0
            detached = node.take(0).detach() if slot is None else self.brought_back(slot, shape)
            detached.requires_grad = True
            before, machine.module = machine.module, module
            machine.in_forward, machine.grad_enabled = True, True
            with machine.autocasting(autocast):
                outputs = function(detached)
            machine.in_forward, machine.grad_enabled = False, False
            run_engine(outputs.node, args)
            machine.node, machine.module = node, before
            grads = detached.grad
            assert grads is not None
            block = machine.blocks[grads.storage.block]
            block.role, block.module = None, module
            return (grads,)

        node = start(machine, (hidden_states,), back)
        if node is not None:
            slot = self.sent_off(hidden_states)
        with machine.no_grad():
            outputs = function(hidden_states)
        return finish(node, outputs, *([hidden_states] if slot is None else []))

    def sent_off(self, arg: Tensor) -> int | None:
        """Which buffer will bring it back; None: it stays."""
        self.last += self.first_pass
        self.current += 1
        if arg.nbytes <= SMALLEST_OFFLOADED or (self.current == self.last and not self.first_pass):
            return None
        machine = self.machine
        if not self.buffers:
            self.buffers = [machine.run("empty", (), (FIRST_BUFFER_NUMEL,), self.dtype) for _ in range(2)]
        if self.backward_pass:
            self.backward_pass = False
            self.doubled = not self.first_pass
        for number in range(1 + self.doubled):
            if arg.numel() > self.buffers[number].numel():
                self.buffers[number] = machine.run("resize_", (), (arg.numel(),), self.dtype)
        machine.launch("copy_", (arg,), arg.dtype, arg.nbytes)
        slot, self.slot = self.slot, self.slot ^ 1
        return slot

    def brought_back(self, slot: int, shape: tuple[int, ...]) -> Tensor:
        buffer = self.buffers[slot if self.doubled else 0].alias(shape, None)
        self.machine.launch("copy_", (buffer,), self.dtype, buffer.nbytes)
        return buffer
