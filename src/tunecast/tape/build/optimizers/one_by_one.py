"""Optimizers that take a parameter at a time: StableAdamW, GrokAdamW, LOMO.

transformers' Adafactor on paper (transformers/optimization.py, 5.17.0): row and column means instead of a moment.

torch's Muon on paper (torch/optim/_muon.py, 2.11): momentum made orthogonal, a matrix at a time. What is no matrix,
and embedding and head, goes to AdamW after it.

torchao's 4- and 8-bit AdamW on paper (torchao 0.18, optim/adam.py), compiled by inductor a parameter at a time.

`single_param_adam` works in fp32. What inductor keeps of it between its kernels, on an inductor of torch 2.11: the
largest value of each block (4-bit: first of halves of blocks), both new moments in fp32, and for 4 bits, where two
codes share a byte, both moments' codes as 8-byte integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT32, INT64, UINT8, Dtype, Shape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.optimizers.foreach import AdamW
from tunecast.tape.build.optimizers.state import Optimizer, clip_gradients
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import MANY, Role


class StableAdamW(Optimizer):
    """optimi 0.3.3 (stableadamw.py), which takes its Triton kernels on a card: no temporaries. 16-bit weights have a
    compensation of their own size (Kahan's sum), others a byte that stands for none."""

    def step(self) -> None:
        trained = self.trained()
        for parameter in trained:
            if id(parameter) not in self.state:
                like = (parameter.shape, parameter.dtype)
                compensation = like if parameter.dtype.itemsize == 2 else ((1,), UINT8)
                kinds = (like, like, ((), parameter.dtype), compensation, ((1,), FLOAT32))
                self.state[id(parameter)] = self.made(parameter, *kinds)
        for parameter in trained:
            self.machine.launch("stableadamw", (parameter,), parameter.dtype, parameter.nbytes)


class SingleAdamW(Optimizer):
    """torch/optim/adam.py, `_single_tensor_adam` (`foreach=False`): the name of a weight's square roots holds them
    until the next weight's are there."""

    def step(self) -> None:
        machine, trained = self.machine, self.trained()
        for p in trained:
            if id(p) not in self.state:
                self.keep_on_host(p, ((), FLOAT32))
                self.state[id(p)] = self.made(p, *[(p.shape, p.dtype)] * 2)
        denom: Tensor | None = None
        for p in trained:
            machine.module = self.module_of(p)
            exp_avg, exp_avg_sq = self.state[id(p)]
            assert p.grad is not None
            machine.launch("mul_", (p,), p.dtype, p.nbytes)
            machine.launch("lerp_", (exp_avg, p.grad), p.dtype, p.nbytes)
            machine.launch("mul_", (exp_avg_sq,), p.dtype, p.nbytes)
            machine.launch("addcmul_", (exp_avg_sq, p.grad), p.dtype, p.nbytes)
            root = exp_avg_sq.sqrt()
            denom = root / 1.0
            del root
            machine.launch("add_", (denom,), p.dtype, p.nbytes)
            machine.launch("addcdiv_", (p, exp_avg, denom), p.dtype, p.nbytes)
        del denom


class GrokAdamW(Optimizer):
    """grokadamw 0.1.2: its three means wait on the host; each parameter's come to the card for its turn. It clips the
    gradient of each alone, whatever was clipped before."""

    def step(self) -> None:
        machine = self.machine
        for p in self.trained():
            machine.module = self.module_of(p)
            grad = p.grad
            assert grad is not None
            if id(p) not in self.state:
                self.keep_on_host(p, *[(p.shape, p.dtype)] * 3)
                self.state[id(p)] = []
            exp_avg, exp_avg_sq = self.brought(p), self.brought(p)
            grok_ema = self.brought(p)
            clip_gradients([p])
            machine.module = self.module_of(p)
            machine.launch("mul_", (grok_ema, grad), p.dtype, p.nbytes)
            grok_grad = grad + grok_ema * 2.0
            machine.launch("add_", (exp_avg, exp_avg_sq, grok_grad), p.dtype, p.nbytes)
            root = exp_avg_sq.sqrt()
            machine.launch("addcdiv_", (p, exp_avg, root), p.dtype, p.nbytes)
            del root

    def brought(self, parameter: Tensor) -> Tensor:
        return self.machine.run("_to_copy", (), parameter.shape, parameter.dtype)


class Lomo(Optimizer):
    """lomo_optim 0.1.1 (lomo.py, `fuse_update`): as a weight's gradient comes in, the one before it is used up, in
    fp32; the last when the backward pass is done. No state, and no step after it."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__(parameters)
        self.waiting: Tensor | None = None
        for parameter in parameters:
            parameter.after_gradient = self.next

    def next(self, parameter: Tensor) -> None:
        if self.waiting is None:
            self.machine.after_backward.append(self.use_up)
        self.use_up()
        self.waiting = parameter

    def use_up(self) -> None:
        p, self.waiting = self.waiting, None
        if p is None:
            return
        assert p.grad is not None
        before, self.machine.module = self.machine.module, self.module_of(p)
        with self.machine.no_grad():
            grad_fp32 = p.grad.float()
            p.grad = None
            p_fp32 = p.float()
            self.machine.launch("add_", (p_fp32, grad_fp32), FLOAT32, p_fp32.nbytes)
        self.machine.module = before

    def step(self) -> None:
        pass


# ------------------------------------------------------------------------------------------------------------ Adafactor


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
            state[2 if factored else 1 :] = [rms(p_data_fp32).as_role(Role.OPTIMIZER)]
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
    return [machine.run("_to_copy", (), shape, FLOAT32).as_role(Role.OPTIMIZER) for shape in shapes]


def rms(x: Tensor) -> Tensor:
    norm = x.machine.run("linalg_vector_norm", (x,), (), FLOAT32, args=(x, 2.0))
    return norm / 1.0  # the root of how many numbers there are


def product(row: Tensor, column: Tensor) -> Tensor:
    """The outer product of the two factors, `_approx_sq_grad`."""
    r_factor = (row / row.mean(-1, keepdim=True)).unsqueeze(-1)
    c_factor = column.unsqueeze(-2).rsqrt()
    return r_factor * c_factor


# ----------------------------------------------------------------------------------------------------------------- Muon


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


# ------------------------------------------------------------------------------------------------------ torchao's AdamW


LOW_BIT_BLOCK = 256
"""The Trainer's, for both."""
SMALLEST_LOW_BIT = 4096
"""Tensors with fewer elements, or a number of them that blocks do not divide, keep state like themselves."""
TUNING = "what inductor borrows in the first step to time its kernels for torchao's optimizer is left out"


class LowBitAdamW(Optimizer):
    def __init__(self, parameters: Sequence[Tensor], *, bits: int) -> None:
        super().__init__(parameters)
        self.bits = bits

    def step(self) -> None:
        machine = self.machine
        machine.guesses[TUNING] = None
        for p in self.trained():
            machine.module = self.module_of(p)
            elements = p.numel()
            quantised = elements >= SMALLEST_LOW_BIT and elements % LOW_BIT_BLOCK == 0
            if id(p) not in self.state:
                self.keep_on_host(p, ((), FLOAT32))
                self.state[id(p)] = [t for _ in range(2) for t in self.buffer(p, quantised)]
            if quantised:
                self.update(p, elements)
            machine.launch("single_param_adam", (p,), p.dtype, p.nbytes)
        machine.module = MANY

    def buffer(self, p: Tensor, quantised: bool) -> list[Tensor]:
        """Codes, scales, and the values codes stand for."""
        if not quantised:
            return [self.zeros(p.shape, p.dtype)]
        elements = p.numel()
        codes = self.zeros((elements * self.bits // 8,), UINT8)
        return [codes, self.zeros((elements // LOW_BIT_BLOCK,), FLOAT32), self.zeros((2**self.bits,), FLOAT32)]

    def update(self, p: Tensor, elements: int) -> None:
        """The buffers of the compiled function, in its order."""
        machine, blocks = self.machine, elements // LOW_BIT_BLOCK
        if self.bits == 8:
            scales = [machine.run("amax", (p,), (blocks,), FLOAT32) for _ in range(2)]
        else:
            first = machine.run("amax", (p,), (2 * blocks,), FLOAT32)
            second = machine.run("amax", (p,), (2 * blocks,), FLOAT32)
            scales = [machine.run("amax", (first,), (blocks,), FLOAT32)]
            del first
            scales.append(machine.run("amax", (second,), (blocks,), FLOAT32))
            del second
        moments = [machine.run("lerp", (p,), (elements,), FLOAT32) for _ in range(2)]
        codes = [machine.run("where", (p,), (elements,), INT64) for _ in range(2)] if self.bits == 4 else []
        del scales, moments, codes

    def zeros(self, shape: Shape, dtype: Dtype) -> Tensor:
        return self.machine.run("zeros", (), shape, dtype).as_role(Role.OPTIMIZER)
