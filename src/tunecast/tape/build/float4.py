"""Linear layers that multiply in NVFP4, on paper: torchao's `NVFP4Linear` (torchao 0.18,
prototype/moe_training/nvfp4_training/nvfp4_linear.py, `nvfp4_mm_triton`).

Two numbers share a byte, and sixteen a scale of one byte. The codes of input and weight are all that is kept for the
backward pass. The weight's gradient is computed even where nobody wants it.

Guessed  that its kernels borrow nothing else on a card: its tensors are counted as torchao declares them, no card was
         measured. TransformerEngine's NVFP4 keeps other tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT32, INT8, INT64, UINT8, Dtype, Shape
from tunecast.tape.build.modules import Linear
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

LARGEST = 448.0 * 6.0
"""Of a float8 scale times a float4 number."""
MULTIPLE = 128
BLACKWELL = 10
BLOCK = 16
"""Numbers that share a scale."""
GUESSED = "float4: torchao's NVFP4 layers as its code declares them; what its kernels borrow was not measured"


def apply(model: Any) -> None:
    """All linear layers but the first and the last, where their sides are multiples of 128."""
    machine = model.machine
    if machine.card.capability[0] < BLACKWELL:
        raise UsageError.at(
            "matmul_dtype",
            f"got float4, which {machine.card.name} has no tensor cores for. "
            "To fix: a Blackwell card, such as hardware.gpu b200, or float8",
        )
    machine.guesses[GUESSED] = None
    found = [module for module in model.modules() if isinstance(module, Linear) and not module.fan_in_fan_out]
    for module in found[1:-1]:
        if module.inputs % MULTIPLE == 0 and module.outputs % MULTIPLE == 0:
            with machine.within(module.path):
                seed, signs = machine.run("randint", (), (1,), INT64), machine.run("empty", (), (BLOCK,), INT8)
            for tensor in (seed, signs):
                tensor.block.role = Role.WEIGHTS
            object.__setattr__(module, "seed", (seed, signs))  # buffers, not parameters
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]


def forward(self: Any, x: Tensor) -> Tensor:
    if x.shape[-2] % MULTIPLE:
        raise UsageError.at(
            "matmul_dtype",
            f"float4 layers need rows of a multiple of {MULTIPLE} tokens, has {x.shape[-2]}. To fix: pad seq_len",
        )
    return product(x, self.weight, self.bias, self.seed[0])


def product(x: Tensor, weight: Tensor, bias: Tensor | None, seed: Tensor) -> Tensor:
    machine, shape = x.machine, x.shape
    width, outputs = x.shape[-1], weight.shape[0]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return gradients_of(node, gradients[0], shape, outputs, bias is not None)

    node = start(machine, (x, weight, bias), back)
    with machine.no_grad():
        input_hp = x.to(BFLOAT16)
        weight_hp = weight.to(BFLOAT16)
        input_2d = input_hp.reshape(-1, width).contiguous()
        x_col_amax, x_row_amax = scalars(x)
        x_col_codes, x_col_sf, x_row_codes, x_row_sf = both_ways(input_2d)
        W_amax = largest(weight_hp)
        Wt_codes, Wt_sf, W_codes, W_sf = both_ways(weight_hp)
        W_gs = W_amax / LARGEST
        x_gs = x_row_amax / LARGEST
        output = scaled_product((x_row_codes, W_codes), (input_2d.shape[0], outputs), width)
        output = output.view(*shape[:-1], outputs)
        if bias is not None:
            output = output + bias
        output.is_view = False
        del x_row_codes, x_row_sf, W_codes, W_sf, W_gs, x_gs, x_row_amax, input_2d, input_hp, weight_hp
    return finish(node, output, x_col_codes, x_col_sf, x_col_amax, Wt_codes, Wt_sf, W_amax, seed)


def gradients_of(node: Node, grad_output: Tensor, shape: Shape, outputs: int, has_bias: bool) -> Sequence[Any]:
    machine, width = grad_output.machine, shape[-1]
    grad_output = grad_output.contiguous()
    flat = grad_output.reshape(-1, outputs)
    offsets = [machine.run("randint", (), (1,), INT64) for _ in range(2)]
    dy_col_amax, dy_row_amax = scalars(flat)
    other_seed = pointwise("bitwise_xor", node.take(6))
    dy = both_ways(flat)
    del other_seed
    scales = [amax / LARGEST for amax in (dy_row_amax, node.take(5))]
    grad_input = scaled_product((dy[2], node.take(3)), (flat.shape[0], width), outputs)
    grad_input = grad_input.view(*shape)
    scales += [amax / LARGEST for amax in (dy_col_amax, node.take(2))]
    grad_weight = scaled_product((dy[0], node.take(0)), (outputs, width), flat.shape[0])
    grad_bias = grad_output.sum(tuple(range(grad_output.dim() - 1))) if has_bias else None
    del offsets, scales
    return grad_input, grad_weight, grad_bias


def both_ways(x: Tensor) -> list[Tensor]:
    """Codes and scales by columns, then by rows."""
    rows, columns = x.shape
    sizes = ((columns, rows // 2), (columns * rows // BLOCK,), (rows, columns // 2), (rows * columns // BLOCK,))
    return x.machine.run_many("torchao::quantize", (x,), [(size, UINT8) for size in sizes])


def scalars(x: Tensor) -> list[Tensor]:
    return x.machine.run_many("torchao::triton_rht_amax", (x,), [((), FLOAT32)] * 2)


def largest(x: Tensor) -> Tensor:
    absolute = x.float().abs()
    return x.machine.run_many("max", (absolute,), (((), FLOAT32),), args=(absolute,))[0]


def scaled_product(factors: Sequence[Tensor], shape: tuple[int, int], inner: int, dtype: Dtype = BFLOAT16) -> Tensor:
    return factors[0].machine.run("_scaled_mm_v2", factors, shape, dtype, 2 * shape[0] * shape[1] * inner)
