"""Optimizers and gradient clipping on paper: the state the first step makes, and what every step borrows."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.tape.build.tensor import FLOAT32, Dtype, Tensor
from tunecast.tape.op import MANY, Role


def clip_gradients(parameters: Sequence[Tensor]) -> None:
    """torch/nn/utils/clip_grad.py: a norm a gradient by kind of dtype, the norm of the norms, one factor for all."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    machine = parameters[0].machine
    machine.module = MANY
    by_dtype: dict[Dtype, list[Tensor]] = {}
    for gradient in gradients:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    norms = []
    for dtype, group in by_dtype.items():
        found = machine.run_many("_foreach_norm", group, [((), dtype)] * len(group), args=(group,))
        for norm, gradient in zip(found, group, strict=True):
            machine.blocks[norm.storage.block].module = machine.blocks[gradient.storage.block].module
        norms += found
        del found, norm
    dtype = FLOAT32 if len(by_dtype) > 1 else gradients[0].dtype
    stacked = machine.run("stack", norms, (len(norms),), dtype)
    total = machine.run("linalg_vector_norm", (stacked,), (), dtype, args=(stacked, 2.0, None))
    del norms, stacked
    shifted = machine.run("add", (total,), (), dtype)
    inverse = machine.run("reciprocal", (shifted,), (), dtype)
    coefficient = machine.run("mul", (inverse,), (), dtype)
    del shifted, inverse
    clamped = machine.run("clamp", (coefficient,), (), dtype)
    for dtype, group in by_dtype.items():
        cast = clamped if clamped.dtype == dtype else machine.run("_to_copy", (clamped,), (), dtype)
        machine.launch("_foreach_mul_", (*group, cast), dtype, 0)
    machine.module = ""


class Optimizer:
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.machine = parameters[0].machine
        self.state: dict[int, list[Tensor]] = {}

    def step(self) -> None:
        raise NotImplementedError

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def trained(self) -> list[Tensor]:
        return [p for p in self.parameters if p.grad is not None]

    def made(self, parameter: Tensor, *kinds: tuple[tuple[int, ...], Dtype]) -> list[Tensor]:
        machine = self.machine
        machine.module = machine.blocks[parameter.storage.block].module
        out = [machine.run("zeros_like", (), shape, dtype) for shape, dtype in kinds]
        for tensor in out:
            machine.blocks[tensor.storage.block].role = Role.OPTIMIZER
        machine.module = MANY
        return out


class AdamW(Optimizer):
    """torch/optim/adam.py, `_multi_tensor_adam`: by dtype; the square roots are a copy of the state."""

    fused = False

    def step(self) -> None:
        trained = self.trained()
        for parameter in trained:
            if id(parameter) not in self.state:
                like = (parameter.shape, parameter.dtype)
                if self.fused:
                    step = self.made(parameter, ((), FLOAT32))
                    self.state[id(parameter)] = step + self.made(parameter, like, like)
                else:
                    self.state[id(parameter)] = self.made(parameter, like, like)
        groups: dict[Dtype, list[Tensor]] = {}
        for parameter in trained:
            groups.setdefault(parameter.dtype, []).append(parameter)
        for dtype, group in groups.items():
            self.update(group, dtype)

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        machine = self.machine
        machine.module = MANY
        for name in ("_foreach_mul_", "_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_"):
            machine.launch(name, group, dtype, 0)
        roots = machine.run_many("_foreach_sqrt", group, [(p.shape, dtype) for p in group])
        for root, parameter in zip(roots, group, strict=True):
            machine.blocks[root.storage.block].module = machine.blocks[parameter.storage.block].module
        for name in ("_foreach_div_", "_foreach_add_", "_foreach_addcdiv_"):
            machine.launch(name, group, dtype, 0)
        del roots


class FusedAdamW(AdamW):
    fused = True

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        self.machine.module = MANY
        self.machine.launch("_foreach_add_", group, FLOAT32, 0)
        self.machine.launch("_fused_adamw_", group, dtype, 0)


class SGD(Optimizer):
    def step(self) -> None:
        groups: dict[Dtype, list[Tensor]] = {}
        for parameter in self.trained():
            groups.setdefault(parameter.dtype, []).append(parameter)
        self.machine.module = MANY
        for dtype, group in groups.items():
            self.machine.launch("_foreach_add_", group, dtype, 0)


OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw_torch": AdamW, "adamw_torch_fused": FusedAdamW, "sgd": SGD}


def make_optimizer(job: Job, parameters: Sequence[Tensor]) -> Optimizer:
    if job.optimizer not in OPTIMIZERS:
        known = ", ".join(sorted(OPTIMIZERS))
        raise Unsupported(
            f"optimizer: the closed form does not know {job.optimizer}; it knows {known}", field="optimizer"
        )
    return OPTIMIZERS[job.optimizer](parameters)
