"""Optimizers that take a parameter at a time: StableAdamW, GrokAdamW, LOMO."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.tape.build.dtypes import FLOAT32, UINT8
from tunecast.tape.build.optimizers.state import Optimizer, clip_gradients
from tunecast.tape.build.tensor import Tensor


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
