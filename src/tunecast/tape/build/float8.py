"""Linear layers that multiply in float8, on paper: torchao's `Float8Linear` in eager mode (torchao 0.18,
float8/float8_linear.py), as accelerate prepares a model with it (accelerate 1.15, utils/ao.py).

Nothing smaller is kept: inputs and weights are saved as they were, and cast on every use, with one scale a tensor. Each
cast makes fp32 copies on the way. The gradient of a weight is computed even where nobody wants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, Dtype
from tunecast.tape.build.modules import Linear
from tunecast.tape.build.tensor import Tensor

FLOAT8, FLOAT64 = Dtype("float8", 1), Dtype("float64", 8)
LARGEST = 448.0
"""Of float8_e4m3fn."""
MULTIPLE = 16
"""Tensor cores take float8 sixteen at a time: `filter_linear_layers` leaves other layers as they are."""
Cast = tuple[Tensor, Tensor]


def apply(model: Any) -> None:
    """All linear layers but the first and the last."""
    found = [module for module in model.modules() if isinstance(module, Linear) and not module.fan_in_fan_out]
    for module in found[1:-1]:
        if module.inputs % MULTIPLE == 0 and module.outputs % MULTIPLE == 0:
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]


def forward(self: Any, x: Tensor) -> Tensor:
    machine = self.machine
    if machine.autocast is not None:
        x = x.to(machine.autocast)
    output = product(x, self.weight.t())
    return output if self.bias is None else output + self.bias.to(output.dtype)


def product(x: Tensor, weight_t: Tensor) -> Tensor:
    """`matmul_with_hp_or_float8_args`."""
    machine, shape = x.machine, (*x.shape[:-1], weight_t.shape[1])
    rows = x.numel() // x.shape[-1]
    if rows % MULTIPLE:
        raise UsageError.at(
            "matmul_dtype", f"float8 products need a multiple of {MULTIPLE} tokens, has {rows}. To fix: pad seq_len"
        )

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return gradients_of(node, gradients[0])

    node = start(machine, (x, weight_t), back)
    with machine.no_grad():
        input_fp8 = cast(x)
        weight_fp8 = cast(weight_t)
        flat = (input_fp8[0].reshape(-1, x.shape[-1]), input_fp8[1])
        out = scaled_product(flat, weight_fp8, x.dtype).view(*shape)
        out.is_view = False
        del flat, input_fp8, weight_fp8
    return finish(node, out, x, weight_t)


def gradients_of(node: Node, grad_output: Tensor) -> Sequence[Any]:
    x, weight_t = node.take(0), node.take(1)
    flat = grad_output.reshape(-1, grad_output.shape[-1])
    grad_output_dim0 = cast(flat)
    weight_dim0 = cast(weight_t)
    grad_input = scaled_product(grad_output_dim0, transpose_cast(weight_dim0), flat.dtype)
    grad_input = grad_input.view(*x.shape)
    x_flat = x.reshape(-1, x.shape[-1])
    grad_output_dim1 = cast(flat)
    input_dim1 = cast(x_flat)
    grad_weight = scaled_product(transpose_cast(grad_output_dim1), input_dim1, flat.dtype)
    return grad_input, grad_weight.transpose(0, 1)


def cast(x: Tensor) -> Cast:
    """Numbers and their scale (`hp_tensor_to_float8_dynamic`)."""
    scale = scale_of(x)
    tensor_scaled = x.float() * scale
    clamped = tensor_scaled.clamp(0)
    return clamped.to(FLOAT8), scale


def scale_of(x: Tensor) -> Tensor:
    machine = x.machine
    absolute = x.abs()
    amax = machine.run_many("max", (absolute,), (((), x.dtype),), args=(absolute,))[0]
    del absolute
    wide = amax.to(FLOAT64)
    clamped = wide.clamp(0)
    inverse = clamped.reciprocal()
    res = inverse * LARGEST
    del clamped, inverse
    return res.to(FLOAT32)


def scaled_product(first: Cast, second: Cast, dtype: Dtype) -> Tensor:
    """The first factor by rows, the second by columns (`preprocess_addmm`, `addmm_float8_unwrapped`)."""
    (a, a_scale), (b, b_scale) = first, second
    if a.stride()[1] != 1:
        a = a.contiguous()
    if b.stride()[1] == 1:
        b = b.transpose(0, 1).contiguous().transpose(0, 1)
    inverse_scales = [scale.reciprocal() for scale in (a_scale, b_scale)]
    flops = 2 * a.shape[0] * a.shape[1] * b.shape[1]
    return a.machine.run("_scaled_mm", (a, b, *inverse_scales), (a.shape[0], b.shape[1]), dtype, flops)


def transpose_cast(given: Cast) -> Cast:
    return given[0].transpose(0, 1), given[1]
