"""What waits in host memory while the card computes."""

from __future__ import annotations

from tunecast.tape.build.optimizers import Optimizer


class OnHost(Optimizer):
    """An optimizer whose parameters, gradients and state are the host's: the card sees nothing of its step."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer.parameters)
        self.optimizer = optimizer

    def step(self) -> None:
        with self.machine.on_host():
            self.optimizer.step()
