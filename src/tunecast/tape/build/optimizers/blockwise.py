"""bitsandbytes' optimizers on paper (bitsandbytes/optim/optimizer.py, 0.50.2): 8-bit state with a scale a block."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.errors import UsageError
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT32, UINT8, Dtype, Shape
from tunecast.tape.build.optimizers.state import Optimizer
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

SMALLEST_8BIT = 4096
"""Tensors with fewer elements keep their state in fp32."""
SMALLEST_PAGED = 100_000
"""Tensors with fewer elements keep their state on the card (`get_state_buffer`)."""
BLOCK = 256
TABLE = 256
"""Values an 8-bit code stands for; one table for signed, one for unsigned state."""


class Blockwise(Optimizer):
    package = "bitsandbytes"

    def __init__(
        self, parameters: Sequence[Tensor], *, states: int = 2, bits: int = 8, paged: bool = False,
        without_bfloat16: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(parameters)
        self.states, self.bits, self.paged, self.without_bfloat16 = states, bits, paged, without_bfloat16
        self.tables: Sequence[Tensor] = []
        """On the card once the first 8-bit state is."""

    def step(self) -> None:
        machine = self.machine
        for parameter in self.trained():
            machine.module = self.module_of(parameter)
            small = self.bits == 32 or parameter.numel() < SMALLEST_8BIT or id(parameter) in self.wide
            if small and self.without_bfloat16 and parameter.dtype == BFLOAT16:
                raise UsageError.at(
                    "optimizer",
                    "bitsandbytes has no 32-bit RMSprop for bfloat16 gradients, and it keeps tensors of"
                    f" fewer than {SMALLEST_8BIT} elements in 32 bits. To fix: weights_dtype or lora.adapter_dtype"
                    " float32, or another optimizer.",
                )
            if id(parameter) not in self.state:
                kept = self.small_state(parameter) if small else self.large_state(parameter)
                self.state[id(parameter)] = kept
            name = "optimizer_update_32bit" if small else "optimizer_update_8bit_blockwise"
            kept_bytes = self.states * parameter.numel() * (4 if small else 1)
            assert parameter.grad is not None
            machine.launch(name, (parameter, parameter.grad), parameter.dtype, parameter.nbytes + kept_bytes)
            machine.synchronize()

    def small_state(self, parameter: Tensor) -> list[Tensor]:
        return [t for _ in range(self.states) for t in self.buffer(parameter, parameter.shape, FLOAT32)]

    def large_state(self, parameter: Tensor) -> list[Tensor]:
        self.bring_tables()
        blocks = -(-parameter.numel() // BLOCK)
        kept = [t for _ in range(self.states) for t in self.buffer(parameter, parameter.shape, UINT8)]
        return kept + [self.zeros((blocks,), FLOAT32) for _ in range(self.states)]

    def bring_tables(self) -> None:
        if not self.tables:
            self.tables = [self.zeros((TABLE,), FLOAT32, "_to_copy") for _ in range(self.states)]

    def buffer(self, parameter: Tensor, shape: Shape, dtype: Dtype) -> list[Tensor]:
        """Paged state is managed memory: nothing of it comes from the caching allocator."""
        if self.paged and parameter.numel() >= SMALLEST_PAGED:
            self.keep_on_host(parameter, (shape, dtype))
            return []
        return [self.zeros(shape, dtype, "zeros_like")]

    def zeros(self, shape: Shape, dtype: Dtype, name: str = "zeros") -> Tensor:
        return self.machine.run(name, (), shape, dtype).as_role(Role.OPTIMIZER)


class AdEMAMix(Blockwise):
    """A fast and a slow mean in one buffer; scales come before what they scale (optim/ademamix.py)."""

    def small_state(self, parameter: Tensor) -> list[Tensor]:
        means = self.buffer(parameter, (2, *parameter.shape), FLOAT32)
        return means + self.buffer(parameter, parameter.shape, FLOAT32)

    def large_state(self, parameter: Tensor) -> list[Tensor]:
        self.bring_tables()
        blocks = -(-parameter.numel() // BLOCK)
        scales = [self.zeros((2, blocks), FLOAT32), self.zeros((blocks,), FLOAT32)]
        means = self.buffer(parameter, (2, *parameter.shape), UINT8)
        return scales + means + self.buffer(parameter, parameter.shape, UINT8)
