"""transformers' Adafactor on paper (transformers/optimization.py, 5.17.0): row and column means instead of a moment."""

from __future__ import annotations

from typing import Any

from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.optimizers.state import Optimizer
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

CLIP_THRESHOLD = 1.0


class Adafactor(Optimizer):
    """A parameter at a time, in fp32. What one parameter's turn leaves in local names lives into the next's."""

    def step(self) -> None:
        machine = self.machine
        update: Any = None
        for p in self.trained():
            machine.module = self.module_of(p)
            assert p.grad is not None
            grad = p.grad
            grad = grad.float()
            factored = p.dim() >= 2
            if id(p) not in self.state:
                rows, columns = p.shape[:-1], p.shape[:-2] + p.shape[-1:]
                self.state[id(p)] = moved(self.machine, rows, columns) if factored else self.made(p, (p.shape, FLOAT32))
            state = self.state[id(p)]
            machine.module = self.module_of(p)
            p_data_fp32 = p
            p_data_fp32 = p_data_fp32.float()
            state[2 if factored else 1 :] = [rms(p_data_fp32)]
            machine.blocks[state[-1].storage.block].role = Role.OPTIMIZER
            update = grad.pow(2) + 1e-30
            if factored:
                for sums, dim in zip(state, (-1, -2), strict=False):
                    machine.launch("mul_", (sums,), FLOAT32, sums.nbytes)
                    mean = update.mean(dim)
                    machine.launch("add_", (sums, mean), FLOAT32, sums.nbytes)
                    del mean
                update = product(state[0], state[1])
            else:
                machine.launch("add_", (state[0], update), FLOAT32, update.nbytes)
                update = state[0].rsqrt()
            machine.launch("mul_", (update, grad), FLOAT32, update.nbytes)
            self.clip(machine, update)
            minus = -update
            machine.launch("add_", (p_data_fp32, minus), FLOAT32, update.nbytes)
            del minus
            if p.dtype != FLOAT32:
                machine.launch("copy_", (p, p_data_fp32), p.dtype, p.nbytes)

    def clip(self, machine: Machine, update: Tensor) -> None:
        limit = rms(update) / CLIP_THRESHOLD
        machine.launch("div_", (update, limit), FLOAT32, update.nbytes)
        machine.launch("mul_", (update,), FLOAT32, update.nbytes)


def moved(machine: Machine, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Zeros made on the host, then brought to the card."""
    out = [machine.run("_to_copy", (), shape, FLOAT32) for shape in shapes]
    for tensor in out:
        machine.blocks[tensor.storage.block].role = Role.OPTIMIZER
    return out


def rms(x: Tensor) -> Tensor:
    norm = x.machine.run("linalg_vector_norm", (x,), (), FLOAT32, args=(x, 2.0))
    return norm / 1.0  # the root of how many numbers there are


def product(row: Tensor, column: Tensor) -> Tensor:
    """The outer product of the two factors, `_approx_sq_grad`."""
    r_factor = (row / row.mean(-1, keepdim=True)).unsqueeze(-1)
    c_factor = column.unsqueeze(-2).rsqrt()
    return r_factor * c_factor
