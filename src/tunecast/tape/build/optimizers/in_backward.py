"""An optimizer for each weight, which steps as soon as the weight's gradient is there and drops the gradient
(torchtune/training/memory.py, `register_optim_in_bwd_hooks`; PyTorch's tutorial of the same name)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.tape.build.optimizers.state import Optimizer
from tunecast.tape.build.tensor import Tensor


def step_in_backward(parameters: Sequence[Tensor], make: Callable[[Sequence[Tensor]], Optimizer]) -> list[Optimizer]:
    """The optimizers, one a weight; nothing has to be called after the backward pass."""
    optimizers = {id(parameter): make([parameter]) for parameter in parameters}

    def optim_step(parameter: Tensor) -> None:
        machine, optimizer = parameter.machine, optimizers[id(parameter)]
        module = machine.module
        optimizer.many = optimizer.module_of(parameter)  # part of its layer, which repeats as a whole
        optimizer.step()
        machine.module = module
        optimizer.zero_grad()

    for parameter in parameters:
        parameter.after_gradient = optim_step
    return list(optimizers.values())


class InBackward(Optimizer):
    """The same for a loop that steps and drops gradients itself: there is nothing left to do."""

    def __init__(self, parameters: Sequence[Tensor], make: Callable[[Sequence[Tensor]], Optimizer]) -> None:
        super().__init__(parameters)
        self.own = step_in_backward(parameters, make)

    def step(self) -> None:
        pass

    def zero_grad(self) -> None:
        pass


def require_one_gradient(job: Job) -> None:
    """Gradients that are gone can be neither summed nor clipped: torchtune's recipes refuse both."""
    if not job.optimizer_in_backward:
        return
    for field, asked in (("grad_accum", job.grad_accum > 1), ("max_grad_norm", bool(job.max_grad_norm))):
        if asked:
            one = 1 if field == "grad_accum" else 0
            raise UsageError(
                f"{field}: got {getattr(job, field)} with optimizer_in_backward, which leaves no gradients for it."
                f" To fix: {field} {one}",
                field=field,
            )
