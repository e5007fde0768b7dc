"""Linear layers whose weights are FP8 in blocks with a scale each, on paper: adapters train over them from transformers
5.22 on.

Activations are quantised inside the kernel, which comes from the Hub; in the backward pass the weight is dequantised.
Source   transformers 5.22.2, integrations/finegrained_fp8.py: `FP8Linear`, `FP8LinearFunction`,
         `_dequantize_fp8_weight`, `finegrained_fp8_linear`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.stored import Packing
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT8_E4M3, FLOAT32, Dtype
from tunecast.tape.build.gptq import refuse_experts, replace_in
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.quantized import give_away, matmul_unviewed
from tunecast.tape.build.tensor import Tensor

GUESSED = (
    "FP8: the Triton kernel of kernels-community/finegrained-fp8, taken to need no memory but its result's; DeepGEMM,"
    " which Hopper and Blackwell take where nvcc is installed, also holds the activations in FP8"
)


def replace_linears(model: Any, packing: Packing) -> None:
    """Every linear layer but the head and those the checkpoint leaves as they are."""
    machine = model.machine
    if not machine.era.trains_on_fp8:
        release = ".".join(map(str, machine.era.release))
        raise UsageError.at(
            "quantization.format",
            f"got fp8 with transformers {release}, which does not train over it (from 5.22 on). To fix: null, which"
            " dequantises the checkpoint, or transformers_version 5.22.2",
        )
    refuse_experts(model, packing, "quantization.format null, which dequantises them as they are loaded")
    machine.guesses[GUESSED] = None
    replace_in(model, model.output_embedding(), lambda child: LinearFP8(child, packing), packing)


class LinearFP8(Linear):
    """`FP8Linear`."""

    def __init__(self, linear: Linear, packing: Packing) -> None:
        Module.__init__(self, linear.machine)
        self.inputs, self.outputs, self.path = linear.inputs, linear.outputs, linear.path
        self.block_rows = packing.block[0] or linear.outputs
        self.weight = self.packed(FLOAT8_E4M3, linear.outputs, linear.inputs)
        self.weight_scale_inv = self.packed(FLOAT32, *packing.scales(linear.outputs, linear.inputs))
        self.bias = linear.bias

    def packed(self, dtype: Dtype, *shape: int) -> Tensor:
        made = self.parameter(*shape)
        made.dtype = dtype
        return made

    def forward(self, x: Tensor) -> Tensor:
        return packed_product(x, self)

    def dequantize(self, dtype: Dtype) -> Tensor:
        """Scales are repeated over rows alone; over columns they go by a view of the weight."""
        machine = self.machine
        scale = self.weight_scale_inv.to(dtype)
        weight = self.weight.to(dtype)
        columns = self.weight_scale_inv.shape[1]
        scale = machine.run("repeat_interleave", (scale,), (scale.shape[0] * self.block_rows, columns), dtype)
        machine.launch("mul_", (weight, scale), dtype, weight.nbytes)
        return weight


def packed_product(x: Tensor, layer: LinearFP8) -> Tensor:
    """`FP8LinearFunction`."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        grad_output = give_away(gradients)
        return (matmul_unviewed(grad_output, layer.dequantize(grad_output.dtype)),)

    node = start(machine, (x,), back)
    with machine.no_grad():
        flops = 2 * x.numel() * layer.outputs
        out = machine.run("finegrained_fp8::matmul", (x, layer.weight), (*x.shape[:-1], layer.outputs), x.dtype, flops)
        if layer.bias is not None:
            machine.launch("add_", (out, layer.bias), out.dtype, out.nbytes)
    return finish(node, out, layer.weight, layer.weight_scale_inv)
