"""What waits in host memory while the card computes."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.event_log import HOST
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.optimizers.foreach import FusedAdamW
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import FROM_HOST, HOST_LOOP, HOST_STEP, MANY, Role

HOST_ASSUMED = (
    "offload: copies from pinned memory, and a CPU optimizer that uses all cores of the host (OMP_NUM_THREADS, "
    "which torchrun sets to 1)"
)


class HostOptimizer(Optimizer):
    """An optimizer whose parameters, gradients and state are the host's: the card sees nothing of its step."""

    def __init__(self, optimizer: Optimizer, fused: bool = False) -> None:
        """`fused`: whatever its name, as DeepSpeed puts its own in its place; torch's others loop on a processor
        (torch/optim/optimizer.py, `_default_to_fused_or_foreach`: lists are for cards)."""
        super().__init__(optimizer.parameters)
        self.optimizer = optimizer
        self.fused = fused or isinstance(optimizer, FusedAdamW)

    def step(self) -> None:
        trained = self.trained()
        with self.machine.on_host():
            self.optimizer.step()
            states = self.states()
        told_of_host_step(self.machine, trained, states, HOST_STEP if self.fused else HOST_LOOP)

    def states(self) -> list[Tensor]:
        return [tensor for kept in self.optimizer.state.values() for tensor in kept]


def told_of_host_step(machine: Machine, parameters: Sequence[Tensor], states: Sequence[Tensor], name: str) -> None:
    """Weights, gradients and state are read; weights and state are written."""
    both = machine.repeated([*parameters, *states])
    gradients = machine.repeated(list(parameters))
    machine.module = MANY
    written = sum(tensor.nbytes for tensor in both)
    machine.launch(name, [*both, *gradients], FLOAT32, written, kernels=0)


def is_on_host(tensor: Tensor) -> bool:
    return tensor.storage is not None and tensor.block.stream == HOST


def on_card(tensor: Tensor) -> Tensor:
    """A copy on the card of what is on the host."""
    machine = tensor.machine
    block = tensor.block
    with machine.within(block.module):
        return machine.run(FROM_HOST, (), tensor.shape, tensor.dtype).as_role(block.role or Role.WEIGHTS)
