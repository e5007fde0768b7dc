"""torchao's 4- and 8-bit AdamW on paper (torchao 0.18, optim/adam.py), compiled by inductor a parameter at a time.

`single_param_adam` works in fp32. What inductor keeps of it between its kernels, on an inductor of torch 2.11: the
largest value of each block (4-bit: first of halves of blocks), both new moments in fp32, and for 4 bits, where two
codes share a byte, both moments' codes as 8-byte integers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.tape.build.dtypes import FLOAT32, INT64, UINT8, Dtype, Shape
from tunecast.tape.build.optimizers.state import Optimizer
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import MANY, Role

BLOCK = 256
"""The Trainer's, for both."""
SMALLEST = 4096
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
            quantised = elements >= SMALLEST and elements % BLOCK == 0
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
        return [codes, self.zeros((elements // BLOCK,), FLOAT32), self.zeros((2**self.bits,), FLOAT32)]

    def update(self, p: Tensor, elements: int) -> None:
        """The buffers of the compiled function, in its order."""
        machine, blocks = self.machine, elements // BLOCK
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
        out = self.machine.run("zeros", (), shape, dtype)
        self.machine.blocks[out.storage.block].role = Role.OPTIMIZER
        return out
