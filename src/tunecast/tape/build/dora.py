"""DoRA on paper (peft 0.21.0, tuners/lora/dora.py): a magnitude for each output beside the low-rank change.

Every forward pass makes the whole change as a matrix (the adapters applied to an identity matrix of the inputs),
adds it to the whole weight and takes the norm of each row.
"""

from __future__ import annotations

from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import FLOAT16, FLOAT32
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.quantized import Linear4bit, Linear8bit
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role


class DoraLinear(Module):
    """`DoraLinearLayer`."""

    scaling = 1.0

    def __init__(self, base: Linear) -> None:
        super().__init__(base.machine)
        self.weight = self.parameter(base.outputs)

    def begin(self, base_layer: Linear, lora_A: Tensor, lora_B: Tensor) -> None:
        """`update_layer`: the magnitudes start as the norms of the rows. A 4-bit layer is copied first."""
        machine = self.machine
        half = lora_A.dtype == FLOAT16
        if half:
            lora_A, lora_B = lora_A.float(), lora_B.float()
        copied = base_layer.copied() if isinstance(base_layer, Linear4bit) else None
        weight = stored_by_output(base_layer, whole_weight(base_layer))
        lora_weight = F.mm(lora_B, lora_A)
        if half:
            lora_weight = lora_weight.to(FLOAT16)
        self.weight.dtype = weight.dtype
        self.weight.storage = self.weight_norm(weight, lora_weight).storage
        block = machine.blocks[self.weight.storage.block]
        block.role, block.module = Role.ADAPTERS, self.path
        del copied

    def weight_norm(self, weight: Tensor, lora_weight: Tensor) -> Tensor:
        """`get_weight_norm`; in fp32 under autocast, then back."""
        weight = weight + self.scaling * lora_weight
        dtype = FLOAT32 if self.machine.autocast is not None else weight.dtype
        norm = self.machine.run("linalg_vector_norm", (weight,), weight.shape[:1], dtype, args=(weight, 2.0, (1,)))
        return norm.to(weight.dtype)

    def forward(self, x: Tensor, lora_A: Any, lora_B: Any, base_layer: Linear, base_result: Tensor | None) -> Tensor:
        lora_weight = self.lora_weight(lora_A, lora_B)
        lora_weight = lora_weight.to(x.dtype)
        magnitude = self.weight
        weight = whole_weight(base_layer)
        weight = stored_by_output(base_layer, weight.to(x.dtype))
        weight_norm = self.weight_norm(weight=weight, lora_weight=lora_weight.detach())
        mag_norm_scale = (magnitude / weight_norm).view(1, -1)
        lora_result = lora_B(lora_A(x))
        if base_result is None:
            base_result = F.linear(x, weight)
        elif base_layer.bias is not None:
            base_result = base_result - base_layer.bias
        return (mag_norm_scale - 1) * base_result + mag_norm_scale * lora_result * self.scaling

    def lora_weight(self, lora_A: Any, lora_B: Any) -> Tensor:
        width, dtype = lora_A.weight.shape[1], lora_A.weight.dtype
        x_eye = self.machine.run("eye", (), (width, width), dtype)
        return lora_B(lora_A(x_eye)).t()


def whole_weight(layer: Linear) -> Tensor:
    """peft/utils/integrations.py, `dequantize_module_weight`."""
    return layer.dequantize() if isinstance(layer, Linear4bit | Linear8bit) else layer.weight


def stored_by_output(layer: Linear, weight: Tensor) -> Tensor:
    """PEFT turns the weights of GPT-2's layers round (`fan_in_fan_out`)."""
    return weight.t() if layer.fan_in_fan_out else weight
