"""torch's Muon on paper (torch/optim/_muon.py, 2.11): momentum made orthogonal, a matrix at a time. What is no matrix,
and embedding and head, goes to AdamW after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import BFLOAT16
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.optimizers.foreach import AdamW
from tunecast.tape.build.optimizers.state import Optimizer
from tunecast.tape.build.tensor import Tensor

ITERATIONS = 5


class Muon(Optimizer):
    def __init__(self, parameters: Sequence[Tensor], outer: Sequence[Tensor]) -> None:
        super().__init__(parameters)
        first_and_last = {id(weight) for weight in outer}
        self.matrices = [p for p in parameters if p.dim() == 2 and id(p) not in first_and_last]
        chosen = {id(p) for p in self.matrices}
        rest = [p for p in parameters if id(p) not in chosen]
        self.rest = AdamW(rest) if rest else None

    def step(self) -> None:
        machine = self.machine
        trained = [p for p in self.matrices if p.grad is not None]
        for parameter in trained:
            if id(parameter) not in self.state:
                self.state[id(parameter)] = self.made(parameter, (parameter.shape, parameter.dtype))
        update: Any = None
        for parameter in trained:
            machine.module = self.module_of(parameter)
            grad, buf = parameter.grad, self.state[id(parameter)][0]
            assert grad is not None
            machine.launch("lerp_", (buf, grad), buf.dtype, buf.nbytes)
            update = pointwise("lerp", grad)
            update = orthogonal(update)
            machine.launch("mul_", (parameter,), parameter.dtype, parameter.nbytes)
            machine.launch("add_", (parameter, update), parameter.dtype, parameter.nbytes)
        del update
        if self.rest is not None:
            self.rest.step()


def orthogonal(grad: Tensor) -> Tensor:
    """Newton-Schulz in bf16, on the flat side of the matrix."""
    machine = grad.machine
    is_copied = machine.torch >= (2, 15) and grad.dtype is BFLOAT16  # optim/_muon.py: `copy=True`
    ortho_grad = pointwise("_to_copy", grad) if is_copied else grad.to(BFLOAT16)
    if grad.shape[0] > grad.shape[1]:
        ortho_grad = ortho_grad.transpose(0, 1)
    rows, columns = ortho_grad.shape
    norm = machine.run("linalg_vector_norm", (ortho_grad,), (), BFLOAT16, args=(ortho_grad, 2.0))
    limit = norm.clamp(0)
    machine.launch("div_", (ortho_grad, limit), BFLOAT16, ortho_grad.nbytes)
    del norm, limit
    for _ in range(ITERATIONS):
        gram_matrix = F.mm(ortho_grad, ortho_grad.transpose(0, 1))
        gram_update = added_product(gram_matrix, gram_matrix, gram_matrix)
        ortho_grad = added_product(ortho_grad, gram_update, ortho_grad)
    return ortho_grad if grad.shape == (rows, columns) else ortho_grad.transpose(0, 1)


def added_product(added: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """addmm onto a matrix, which no bias epilogue serves: cublasLt's workspace is not asked for."""
    machine, shape = a.machine, (a.shape[0], b.shape[1])
    machine.launch("addmm", (added, a, b), a.dtype, 2 * shape[0] * shape[1], 2 * a.shape[1] * shape[0] * shape[1])
    out = machine.tensor(shape, a.dtype)
    machine.keep_workspaces("mm")
    return out
