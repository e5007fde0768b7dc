"""Linear layers whose weights GPTQ has quantised, on paper: what they hold and how they run.

Two kernels train, and the release of transformers says which is taken (a guess on the tape names it):

    tritonv2   auto_gptq's and fms-acceleration's: the weight is dequantised whole, and again in the backward pass
               (fms_acceleration_peft 0.3.5, gptqmodel/nn_modules/{qlinear/qlinear_tritonv2,triton_utils/dequant}.py)
    torch      gptqmodel's, which transformers 5 needs: one compiled kernel dequantises the weight, and autograd keeps
               it for the backward pass (gptqmodel 7.7.0, nn_modules/qlinear/torch.py, `_forward_eager`; its faster
               kernels do not train). Without recomputation every weight is held a second time, in 16 bits.

Adapters are in adapters.py, after peft/tuners/lora/gptq.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.stored import Packing
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.dtypes import FLOAT16, FLOAT32, INT32, Dtype
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.quantized import give_away
from tunecast.tape.build.tensor import Tensor

WORD = 32
"""Bits of what weights are packed into."""
GPTQMODEL = (4, 50)
"""From this release of transformers on gptqmodel's kernel is taken; before, auto_gptq's."""
PLAIN_CHECKPOINT = "the checkpoint that is not quantised, with method lora or qlora"
TRITON_GUESSED = "GPTQ: auto_gptq's tritonv2 kernel, which dequantises a weight in both passes and keeps none"
TORCH_GUESSED = (
    "GPTQ: gptqmodel's torch kernel (backend auto_trainable), whose dequantised weights are kept for the backward pass"
)


def replace_linears(model: Any, packing: Packing) -> None:
    """Every linear layer but the head, as it stands in a checkpoint. Nothing is quantised on the card."""
    head, machine = model.output_embedding(), model.machine
    older = machine.era.release < GPTQMODEL
    if older and machine.weights_dtype != FLOAT16:
        release = ".".join(map(str, machine.era.release))
        raise Unsupported.at(
            "weights_dtype",
            f"got {machine.weights_dtype} with weights in gptq and transformers {release}, for which"
            " auto_gptq's kernel is taken: it computes in float16. To fix: weights_dtype float16",
        )
    refuse_experts(model, packing, PLAIN_CHECKPOINT)
    machine.guesses[TRITON_GUESSED if older else TORCH_GUESSED] = None
    kind = LinearGPTQ if older else KeptLinearGPTQ
    replace_in(model, head, lambda child: kind(child, packing), packing)


def refuse_experts(model: Any, packing: Packing, remedy: str) -> None:
    """Checkpoints hold each expert packed; transformers 5 holds all of a layer as one parameter, no linear layers."""
    if any(tensor.dim() == 3 for tensor in model.parameters()):
        raise Unsupported.at(
            "quantization.format", f"the closed form does not know experts in {packing.title}. To fix: {remedy}"
        )


def replace_in(module: Module, head: Module, packed: Callable[[Linear], Linear], packing: Packing) -> None:
    """Linear by linear, in the order of the tree; what is stored by input is none to those who pack."""
    for name, child in list(module.children.items()):
        if not isinstance(child, Linear):
            replace_in(child, head, packed, packing)
        elif child is not head and not child.fan_in_fan_out and not packing.skips(child.path):
            setattr(module, name, packed(child))


class LinearGPTQ(Linear):
    """qlinear_tritonv2.py, `QuantLinear`: buffers, which arrive packed."""

    def __init__(self, linear: Linear, packing: Packing) -> None:
        Module.__init__(self, linear.machine)
        self.inputs, self.outputs = linear.inputs, linear.outputs
        groups = packing.groups(linear.inputs)
        self.qweight = self.buffer(linear.inputs // WORD * packing.bits, linear.outputs, dtype=INT32)
        self.qzeros = self.buffer(groups, linear.outputs // WORD * packing.bits, dtype=INT32)
        self.scales = self.buffer(groups, linear.outputs, dtype=self.scales_dtype())
        self.g_idx = self.buffer(linear.inputs, dtype=INT32)
        self.bias: Any = None if linear.bias is None else self.buffer(linear.outputs, dtype=self.scales_dtype())
        self.weight = self.qweight
        self.path = linear.path

    def scales_dtype(self) -> Dtype:
        return FLOAT16

    def forward(self, x: Tensor) -> Tensor:
        out = self.flat(x).reshape(*x.shape[:-1], self.outputs)
        return out if self.bias is None else out + self.bias

    def flat(self, x: Tensor) -> Tensor:
        """The product, a row a token: what `forward` gives a view of."""
        return quantized_product(x.reshape(-1, x.shape[-1]), self).to(FLOAT16)

    def dequantize(self) -> Tensor:
        """dequant.py, `dequant248`."""
        packed = (self.g_idx, self.scales, self.qweight, self.qzeros)
        return self.machine.run("triton::dequant_kernel_248", packed, (self.inputs, self.outputs), self.scales.dtype)


class KeptLinearGPTQ(LinearGPTQ):
    """qlinear/torch.py, `TorchLinear`; what inductor makes of `dequantize_weight` needs no memory but its result's."""

    def scales_dtype(self) -> Dtype:
        dtype = self.machine.weights_dtype
        return FLOAT16 if dtype == FLOAT32 else dtype

    def forward(self, x: Tensor) -> Tensor:
        out, shape = self.flat(x), (*x.shape[:-1], self.outputs)
        return out.reshape(*shape) if self.bias is None else added_to_view(out, self.bias, shape)

    def flat(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, x.shape[-1])
        return F.matmul(x, self.dequantize().to(x.dtype))


def quantized_product(x: Tensor, layer: LinearGPTQ) -> Tensor:
    """dequant.py, `QuantLinearFunction`: autocast holds in both directions (`custom_fwd`, `custom_bwd`)."""
    machine = x.machine
    autocast = machine.autocast

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        grad_output = give_away(gradients)
        with machine.autocasting(autocast):
            return (F.matmul(grad_output, layer.dequantize().t()),)

    node = start(machine, (x,), back)
    with machine.no_grad():
        out = F.matmul(x, layer.dequantize())
    return finish(node, out, layer.qweight, layer.scales, layer.qzeros, layer.g_idx)


def added_to_view(base: Tensor, other: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`base.view(shape) += other`: autograd rebases the history on `base`, and the gradient is copied twice
    (torch/csrc/autograd/functions/tensor.cpp, `CopySlices::apply`)."""
    machine, whole, dtype = base.machine, base.shape, base.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        result = machine.run("new_empty_strided", gradients, whole, dtype)
        return result, machine.run("clone", (result,), shape, dtype)

    machine.launch("add_", (base, other), dtype, base.nbytes)
    out = record(base.detach(), (base, other), back)
    out.is_view = False
    return out.view(*shape)
