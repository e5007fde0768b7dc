"""torchtune's DoRA on paper (torchtune 0.6.1, modules/peft/dora.py).

The low-rank change is written out as a matrix for its norm: by an identity as wide as the input, since FSDP's hooks are
on the calls of the two layers. That pass is part of the graph until the norm is taken, and its result is let go.
"""

from __future__ import annotations

from tunecast.tape.build import functional as F
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.stacks.torchtune.modules import LoRALinear
from tunecast.tape.build.tensor import Tensor


class DoRALinear(LoRALinear):
    def __init__(self, machine: Machine, inputs: int, outputs: int, bias: bool, rank: int, dropout: float) -> None:
        super().__init__(machine, inputs, outputs, bias, rank, dropout)
        self.magnitude = self.parameter(outputs)

    def forward(self, x: Tensor) -> Tensor:
        base_out = F.linear(x, self.weight, self.bias)
        x = F.dropout(x, self.dropout)
        lora_out = self.lora_b(self.lora_a(x))
        x_eye = self.machine.run("eye", (), (self.inputs, self.inputs), x.dtype)
        lora_weight = self.lora_b(self.lora_a(x_eye)).t()
        magnitude = self.magnitude
        weight = self.weight
        weight_norm = self.weight_norm(weight, lora_weight.detach())
        weight_norm = weight_norm.detach()
        mag_norm_scale = (magnitude / weight_norm).view(1, -1)
        dora_out = (mag_norm_scale - 1) * base_out + mag_norm_scale * lora_out * self.scaling
        return dora_out + base_out

    def weight_norm(self, weight: Tensor, lora_weight: Tensor) -> Tensor:
        """`_get_weight_norm`."""
        weight = weight + lora_weight * self.scaling
        norm = self.machine.run(
            "linalg_vector_norm", (weight,), (weight.shape[0],), weight.dtype, args=(weight, 2.0, [1])
        )
        return norm.to(weight.dtype)
