"""torchao's NF4 weights on paper (torchao 0.9.0, torchao/dtypes/nf4tensor.py): plain PyTorch, so bringing a weight back
takes indices of eight bytes for every element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import INT8, INT64, UINT8, Dtype, Shape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.stacks.torchtune.modules import LoRALinear
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

BLOCK, SCALER_BLOCK = 64, 256
CHUNK = 1 << 20
"""Elements compared with the 16 values of the table at a time (`convert_to_norm_float_weight`)."""


class FrozenNF4Linear(Linear):
    """modules/low_precision/nf4_linear.py."""

    parts: Sequence[Tensor]

    def quantize(self) -> None:
        """`NF4Tensor.from_tensor`: of what it takes meanwhile, the large copies."""
        machine, shape, dtype = self.machine, self.weight.shape, self.weight.dtype
        with machine.within(self.path):
            weight = machine.run("empty", (), shape, dtype)
            numel = weight.numel()
            scalers = numel // BLOCK
            table = self.held("_to_copy", (16,), dtype)
            mean = self.held("mean", (), dtype)
            quantized_scalers = self.held("_to_copy", (scalers,), INT8)
            factor = self.held("clone", (scalers // SCALER_BLOCK,), dtype)
            scaled = weight / 1.0
            found = machine.run("empty", (), (numel,), UINT8)
            apart = machine.run("sub", (scaled,), (min(numel, CHUNK), 16), dtype)
            apart = apart.abs()
            data = self.held("bitwise_or", (numel // 2,), UINT8)
            del weight, scaled, found, apart
        self.parts = (data, quantized_scalers, factor, mean, table)
        self.weight.storage = data.storage

    def held(self, name: str, shape: Shape, dtype: Dtype) -> Tensor:
        return self.machine.run(name, (), shape, dtype).as_role(Role.WEIGHTS)

    def forward(self, x: Tensor) -> Tensor:
        out = linear_nf4(x, self)
        return out if self.bias is None else out + self.bias

    def original(self) -> Tensor:
        """`get_original_weight`."""
        machine, dtype = self.machine, self.weight.dtype
        data, quantized_scalers, factor, mean, table = self.parts
        half = data.shape
        first_elements = pointwise("__rshift__", data).to(INT64)
        second_elements = pointwise("bitwise_and", data).to(INT64)
        dequantized_first = machine.run("index", (table, first_elements), half, dtype)
        dequantized_second = machine.run("index", (table, second_elements), half, dtype)
        scalers = self.dequantized_scalers(quantized_scalers, factor, mean, dtype)
        repeated = scalers.unsqueeze(-1).expand(scalers.shape[0], BLOCK // 2)
        scaled_first = dequantized_first * repeated.reshape(-1)
        scaled_second = dequantized_second * repeated.reshape(-1)
        stacked = machine.run("stack", (scaled_first, scaled_second), (*half, 2), dtype)
        return stacked.alias(self.weight.shape, None)

    def dequantized_scalers(self, scalers: Tensor, factor: Tensor, mean: Tensor, dtype: Dtype) -> Tensor:
        divided = self.machine.run("div", (scalers, factor), scalers.shape, dtype)
        return divided + 1.0


def linear_nf4(x: Tensor, layer: FrozenNF4Linear) -> Tensor:
    """`LinearNF4`: the weight is brought back for each product and let go."""
    machine: Machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        out = F.matmul(gradients[0], layer.original())
        out.is_view = False  # `_unsafe_view`
        return (out,)

    node = start(machine, (x,), back)
    with machine.no_grad():
        out = F.linear(x, layer.original())
    return finish(node, out, layer.weight)


class QuantizedLoRALinear(LoRALinear, FrozenNF4Linear):
    """modules/peft/lora.py, `LoRALinear` with quantize_base."""
