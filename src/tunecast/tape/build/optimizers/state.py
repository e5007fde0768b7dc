"""What optimizers share, and the clipping of gradients before them.

An optimizer for each weight, which steps as soon as the weight's gradient is there and drops the gradient
(torchtune/training/memory.py, `register_optim_in_bwd_hooks`; PyTorch's tutorial of the same name).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.records import NamedTuple
from tunecast.tape.build.dtypes import FLOAT32, Dtype, Shape
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import LET_GO, MANY, Op, Phase, Role

COLLECTED = 2
"""Lists of a norm for each gradient, of which one comes out of a kernel and goes into another."""


def clip_gradients(
    parameters: Sequence[Tensor], over_ranks: Callable[[Tensor], Tensor] = lambda norms: norms
) -> Tensor | None:
    """torch/nn/utils/clip_grad.py: a norm a gradient by kind of dtype, the norm of the norms, one factor for all.

    `over_ranks` makes norms of this rank's parts those of whole gradients.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return None
    total = total_norm(gradients, over_ranks)
    clip_by_norm(gradients, total)
    return total


def total_norm(gradients: Sequence[Tensor], over_ranks: Callable[[Tensor], Tensor]) -> Tensor:
    """`get_total_norm`."""
    machine = gradients[0].machine
    machine.module = MANY
    norms = []
    groups = by_dtype(gradients)
    for dtype, group in groups.items():
        found = machine.run_many("_foreach_norm", group, [((), dtype)] * len(group), args=(machine.repeated(group),))
        for norm, gradient in zip(found, group, strict=True):
            norm.block.module = gradient.block.module
        norms += found
        del found, norm
    dtype = FLOAT32 if len(groups) > 1 else gradients[0].dtype
    machine.go_over(gradients, COLLECTED)
    stacked = machine.run("stack", norms, (len(machine.repeated(gradients)),), dtype)
    whole = over_ranks(stacked)
    return machine.run("linalg_vector_norm", (whole,), (), dtype, args=(whole, 2.0, None))


def clip_by_norm(gradients: Sequence[Tensor], total: Tensor) -> None:
    """`clip_grads_with_norm_`."""
    machine, total_dtype = total.machine, total.dtype
    machine.module = MANY
    shifted = machine.run("add", (total,), (), total_dtype)
    inverse = machine.run("reciprocal", (shifted,), (), total_dtype)
    coefficient = machine.run("mul", (inverse,), (), total_dtype)
    del shifted, inverse
    clamped = machine.run("clamp", (coefficient,), (), total_dtype)
    for dtype, group in by_dtype(gradients).items():
        machine.launch("_foreach_mul_", (*group, clamped), dtype, 0)
    machine.module = ""


def by_dtype(tensors: Sequence[Tensor]) -> dict[Dtype, list[Tensor]]:
    """The dtype that comes last first: `_group_tensors_by_device_and_dtype` has a C++ `unordered_map`, which goes
    through its keys from the newest."""
    groups: dict[Dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return dict(reversed(groups.items()))


class State(NamedTuple):
    """One tensor of an optimizer's state."""

    nbytes: int
    paged: bool = False
    """In CUDA's managed memory."""
    on_host: bool = False
    """Not in memory that torch's allocator gave; of paged state this is true as well."""
    shared: bool = False
    """By all parameters, until the run is resumed: a file has one for each."""


class Optimizer:
    paged = False
    """State on the host is CUDA's managed memory, whose pages are on the card while they are used."""
    package = "torch"
    """Whose `load_state_dict` it has."""
    tables: Sequence[Tensor] = ()
    """State that all parameters share: of 8-bit codes, the values they stand for."""
    wide: Collection[int] = ()
    """Ids of parameters whose state somebody overrode to have 32 bits (bitsandbytes' `GlobalOptimManager`)."""
    many = MANY
    """Whose operations on many weights are: of a single weight's optimizer, its module's."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.machine = parameters[0].machine
        self.state: dict[int, list[Tensor]] = {}
        self.host_state: list[Tensor] = []
        """What the host keeps of it: counters of steps, and what waits there for its parameter's turn."""

    def step(self) -> None:
        raise NotImplementedError

    def take_step(self) -> None:
        """In a phase of its own."""
        machine = self.machine
        machine.phase = Phase.OPTIMIZER
        self.step()
        machine.phase, machine.module = Phase.OTHER, ""

    def zero_grad(self) -> None:
        if trained := self.trained():
            self.machine.mark(Op(LET_GO, MANY, kernels=0, shapes=((len(self.machine.repeated(trained)),),)))
        del trained
        for parameter in self.parameters:
            parameter.grad = None

    def trained(self) -> list[Tensor]:
        return [p for p in self.parameters if p.grad is not None]

    def module_of(self, parameter: Tensor) -> str:
        return parameter.block.module

    def made(self, parameter: Tensor, *kinds: tuple[Shape, Dtype]) -> list[Tensor]:
        machine = self.machine
        machine.module = self.module_of(parameter)
        out = [machine.run("zeros_like", (), shape, dtype).as_role(Role.OPTIMIZER) for shape, dtype in kinds]
        machine.module = self.many
        return out

    def keep_on_host(self, parameter: Tensor, *kinds: tuple[Shape, Dtype]) -> None:
        machine, module = self.machine, self.machine.module
        with machine.on_host():
            self.host_state += self.made(parameter, *kinds)
        machine.module = module


# ----------------------------------------------------------------------------------------- an optimizer for each weight


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
            raise UsageError.at(
                field,
                f"got {getattr(job, field)} with optimizer_in_backward, which leaves no gradients for it."
                f" To fix: {field} {one}",
            )
