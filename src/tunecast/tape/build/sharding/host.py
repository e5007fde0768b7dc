"""What waits in host memory while the card computes."""

from __future__ import annotations

from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.tensor import HOST, Tensor
from tunecast.tape.op import FROM_HOST, Role


class OnHost(Optimizer):
    """An optimizer whose parameters, gradients and state are the host's: the card sees nothing of its step."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer.parameters)
        self.optimizer = optimizer

    def step(self) -> None:
        with self.machine.on_host():
            self.optimizer.step()


def is_on_host(tensor: Tensor) -> bool:
    return tensor.storage is not None and tensor.machine.blocks[tensor.storage.block].stream == HOST


def on_card(tensor: Tensor) -> Tensor:
    """A copy on the card of what is on the host."""
    machine = tensor.machine
    block = machine.blocks[tensor.storage.block]
    with machine.within(block.module):
        copy = machine.run(FROM_HOST, (), tensor.shape, tensor.dtype)
    machine.blocks[copy.storage.block].role = block.role or Role.WEIGHTS
    return copy
