"""Linear layers whose weights AWQ has quantised to 4 bits, on paper: what they hold and how they run.

transformers 5 runs them by gptqmodel, whose kernel for training (backend auto_trainable) is its GEMM: from 1,025 rows
on the weight is dequantised whole, before that it is read packed by eight blocks at a time whose sums are added; in the
backward pass it is dequantised always. Nothing but packed weights is kept.
Source   gptqmodel 7.7.0, nn_modules/qlinear/gemm_awq.py, `AwqGemmFn`, `AwqGEMMLinear`; gptqmodel_ext/awq/quantization/
         gemm_cuda_gen.cu, `gemm_forward_cuda`, `dequantize_weights_cuda`; transformers 5.22.2, integrations/awq.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.stored import Packing
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32
from tunecast.tape.build.gptq import PLAIN_CHECKPOINT, WORD, refuse_experts, replace_in
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.quantized import change_dtype, give_away
from tunecast.tape.build.tensor import Tensor

DEQUANTIZES_ABOVE, SPLITS = 1024, 8
GUESSED = (
    "AWQ: gptqmodel's GEMM kernel (backend auto_trainable), which dequantises a weight in both passes and keeps none;"
    " its extension was read, not run"
)


def replace_linears(model: Any, packing: Packing) -> None:
    """Every linear layer but the head and those the checkpoint leaves as they are."""
    machine = model.machine
    if packing.bits != 4:
        raise UsageError.at("model", f"AWQ of {packing.bits} bits has no kernel that trains. To fix: one of 4 bits")
    refuse_experts(model, packing, PLAIN_CHECKPOINT)
    machine.guesses[GUESSED] = None
    replace_in(model, model.output_embedding(), lambda child: LinearAWQ(child, packing), packing)


class LinearAWQ(Linear):
    """`AWQuantLinear`: buffers, which arrive packed, in float16 whatever the job says."""

    def __init__(self, linear: Linear, packing: Packing) -> None:
        Module.__init__(self, linear.machine)
        self.inputs, self.outputs, self.path = linear.inputs, linear.outputs, linear.path
        words = -(-linear.outputs * packing.bits // WORD)
        groups = packing.groups(linear.inputs)
        self.qweight = self.buffer(linear.inputs, words, dtype=INT32)
        self.qzeros = self.buffer(groups, words, dtype=INT32)
        self.scales = self.buffer(groups, linear.outputs, dtype=FLOAT16)
        self.bias: Any = None if linear.bias is None else self.buffer(linear.outputs, dtype=FLOAT16)
        self.weight = self.qweight

    def forward(self, x: Tensor) -> Tensor:
        input_dtype = x.dtype
        compute_dtype = input_dtype if input_dtype in (FLOAT16, BFLOAT16) else FLOAT16
        x = x.to(compute_dtype)
        x = x.contiguous()
        for own in (self.scales, self.bias):  # `_ensure_runtime_dtype`
            if own is not None and own.dtype != compute_dtype:
                change_dtype(own, compute_dtype)
        out = packed_product(x, self)
        out = out.to(input_dtype)
        return out.reshape(*x.shape[:-1], self.outputs)

    def dequantize(self) -> Tensor:
        packed = (self.qweight, self.scales, self.qzeros)
        return self.machine.run("awq::dequantize_weights", packed, (self.inputs, self.outputs), self.scales.dtype)


def packed_product(x: Tensor, layer: LinearAWQ) -> Tensor:
    """`AwqGemmFn`: autocast holds inside, as in any function without `custom_fwd`; not in the backward pass."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        grad_output = give_away(gradients)
        weights = layer.dequantize().to(grad_output.dtype)
        grad_output_2d = grad_output.reshape(-1, layer.outputs)
        grad_input = F.matmul(grad_output_2d, weights.transpose(0, 1))
        return (grad_input.reshape(*shape),)

    node = start(machine, (x,), back)
    with machine.no_grad():
        x_2d = x.reshape(-1, layer.inputs)
        if x_2d.shape[0] > DEQUANTIZES_ABOVE:
            out = layer.dequantize()
            out = F.matmul(x_2d, out.to(dtype))
        else:
            out = split_product(x_2d, layer)
        out = out if layer.bias is None else out + layer.bias
        out = out.reshape(*shape[:-1], layer.outputs)
    return finish(node, out, layer.qweight, layer.qzeros, layer.scales)


def split_product(x: Tensor, layer: LinearAWQ) -> Tensor:
    """`gemm_forward_cuda` with fp32 accumulation: the sums of eight parts, added up."""
    machine, shape = x.machine, (x.shape[0], layer.outputs)
    flops = 2 * x.shape[0] * layer.inputs * layer.outputs
    parts = machine.run("awq::gemm_forward", (x, layer.qweight), (SPLITS, *shape), FLOAT32, flops)
    return machine.run("sum", (parts,), shape, x.dtype)
