"""Weights that bitsandbytes holds in 4 or 8 bits, on paper (bitsandbytes 0.50.2): loading, forward, backward.

Loading follows `quantize` of tape/trace/recipe.py: a weight arrives in its dtype and leaves quantised.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeGuard

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.stored import Packing
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT8, INT32, INT64, UINT8, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels.four_bit import BLOCK, takes_fused_kernel
from tunecast.tape.kernels.outliers import GATES, share_of_outlier_columns
from tunecast.tape.op import Phase, Role

NESTED_BLOCK = 256
STATE_BYTES = {False: 70, True: 144}
"""Of the words beside a shape in what a checkpoint says of a weight in 4 bits, quantised twice or once; they are less
than the 512 bytes that any tensor takes."""
OUTLIER_THRESHOLD = 6.0
OUTLIERS_GUESSED = (
    "LLM.int8 keeps columns with a value beyond its threshold in 16 bits; taken: as many as"
    " untrained weights are expected to give; trained ones may give others"
)


# ------------------------------------------------------------------------------------------------------- loading


class Quantizer:
    def __init__(self, job: Job, model: Any, initializer_range: float, stored: Packing | None = None) -> None:
        """`stored`: how the checkpoint holds the weights, where it is quantised already."""
        self.options, self.stored = job.quantization, stored
        self.elements_per_byte = 1 if self.options.format == "int8" else 2
        """As transformers counts them before it loads (param_element_size)."""
        self.head = model.output_embedding()
        self.tables: list[Tensor] = []
        """Made once, and kept as long as the program runs."""
        self.outliers = Outliers(initializer_range, any(m.path.rpartition(".")[2] in GATES for m in model.modules()))

    def takes(self, module: Module) -> TypeGuard[Linear]:
        """The head stays as it is, what the checkpoint leaves, and kinds of layers that transformers passes over."""
        if not isinstance(module, Linear) or module is self.head or module.stays:
            return False
        is_plain = type(module) is Linear or module.fan_in_fan_out
        takes = is_plain or module.machine.era.packs_kin_of_linear
        return takes and (self.stored is None or not self.stored.skips(module.path))

    def replace_in(self, module: Module) -> None:
        """Linear by linear, in the order of the tree; transformers' Conv1D, which no program of one's own would look
        for, stays."""
        for name, child in list(module.children.items()):
            if self.takes(child) and not child.fan_in_fan_out:
                with child.machine.within(child.path):
                    setattr(module, name, self.quantized(child))
            elif self.options.experts and hasattr(child, "packed"):
                self.pack_experts(child)
            elif self.options.experts and hasattr(child, "by_expert"):
                layers = child.by_expert()
                layers.name_all(child.path)
                setattr(module, name, layers)
                self.replace_in(layers)
            else:
                self.replace_in(child)

    def pack_experts(self, routed: Module) -> None:
        """Routers stay as they are."""
        from tunecast.tape.build.experts import Experts
        from tunecast.tape.build.packed.experts import quantize  # few jobs need it

        if isinstance(routed, Experts):
            quantize(routed, self)

    def quantized(self, linear: Linear) -> Linear:
        machine = linear.machine
        if getattr(linear, "returns_many", False):
            raise Unsupported.at(
                "quantization.format", f"{linear.path} is linear by its class, and fails when bitsandbytes replaces it"
            )
        new: Linear
        if self.stored is not None and self.options.format != "int8":
            stored = StoredState(machine, (linear.outputs, linear.inputs), self.stored)
            return self.with_bias(Linear4bit(linear, machine.weights_dtype, stored), linear)
        arrived = made(machine, "empty", (linear.outputs, linear.inputs), machine.weights_dtype)
        weight = arrived.clone() if linear.fan_in_fan_out else arrived
        if self.options.format == "int8":
            new = Linear8bit(linear, weight, self.outliers)
        else:
            state = QuantState(weight, self.options.double_quant, self.tables)
            new = Linear4bit(linear, weight.dtype, state)
        return self.with_bias(new, linear)

    def with_bias(self, new: Linear, linear: Linear) -> Linear:
        machine = linear.machine
        new.path = linear.path
        if linear.bias is not None:
            there = linear.bias.storage is not None  # a checkpoint's biases come before its weights
            new.bias = linear.bias if there else made(machine, "zeros", (linear.outputs,), machine.weights_dtype)
            kept(new.bias).requires_grad = False
        return new


def made(machine: Machine, name: str, shape: tuple[int, ...], dtype: Dtype) -> Tensor:
    return machine.run(name, (), shape, dtype)


def kept(tensor: Tensor) -> Tensor:
    """Part of the weights from now on."""
    return tensor.as_role(Role.WEIGHTS)


def prepare_kbit(model: Any) -> None:
    """peft/utils/other.py, `prepare_model_for_kbit_training`: what is not quantised becomes fp32."""
    for parameter in model.parameters():
        if parameter.dtype in (FLOAT16, BFLOAT16):
            change_dtype(parameter, FLOAT32)
    model.machine.empty_cache()


def change_dtype(parameter: Tensor, dtype: Dtype) -> None:
    """`parameter.data = parameter.data.to(dtype)`."""
    machine = parameter.machine
    block = parameter.block
    before, machine.module = machine.module, block.module
    copy = parameter.detach().to(dtype)
    machine.module = before
    copy.block.role = block.role
    if machine.phase is Phase.LOAD:  # it was never more than a step of loading
        block.role = None
    parameter.storage, parameter.dtype = copy.storage, dtype


# -------------------------------------------------------------------------------------------------------- 4 bits


class QuantState:
    """Scales a block of weights, the table of values and, where the scales are quantised too, theirs."""

    def __init__(self, weight: Tensor, nested: bool, tables: list[Tensor]) -> None:
        """functional.py, `quantize_4bit` and `quantize_blockwise`; the table of 8-bit values is made once."""
        machine = weight.machine
        self.shape, self.dtype, self.nested = weight.shape, weight.dtype, nested
        blocks = -(-weight.numel() // BLOCK)
        self.absmax = made(machine, "quantize_4bit", (blocks,), FLOAT32)
        self.packed = kept(made(machine, "empty", ((weight.numel() + 1) // 2, 1), UINT8))
        self.code = kept(made(machine, "_to_copy", (16,), FLOAT32))
        magnitude = self.code.abs()
        largest = machine.run("max", (magnitude,), (), FLOAT32, args=(magnitude,))
        del magnitude
        machine.launch("div_", (self.code, largest), FLOAT32, self.code.nbytes)
        del largest
        self.offset = self.absmax2 = self.code2 = self.absmax
        if nested:
            absmax = self.absmax
            self.offset = kept(machine.run("mean", (absmax,), (), FLOAT32, args=(absmax,)))
            centred = absmax - 1
            if not tables:
                tables.append(made(machine, "_to_copy", (256,), FLOAT32))
            self.absmax2 = kept(made(machine, "quantize_blockwise", (-(-blocks // NESTED_BLOCK),), FLOAT32))
            self.absmax = made(machine, "empty", (blocks,), UINT8)
            self.code2 = kept(made(machine, "_to_copy", (256,), FLOAT32))
            del centred, absmax
        kept(self.absmax)

    def tensors(self) -> list[Tensor]:
        return [self.absmax, self.code, *([self.offset, self.absmax2, self.code2] if self.nested else [])]

    def dequantize(self, packed: Tensor | None = None) -> Tensor:
        """functional.py, `dequantize_4bit`."""
        packed = packed or self.packed
        machine = packed.machine
        absmax = self.absmax
        if self.nested:
            absmax = machine.run("dequantize_blockwise", (self.absmax,), self.absmax.shape, FLOAT32)
            machine.launch("add_", (absmax, self.offset), FLOAT32, absmax.nbytes)
        return machine.run("dequantize_4bit", (packed, absmax), self.shape, self.dtype)


class StoredState(QuantState):
    """The same from a checkpoint that was saved in 4 bits (`QuantState.from_dict`): in the order transformers collects
    its parts (quantizer_bnb_4bit.py), and a few words of JSON that go once they are read."""

    def __init__(self, machine: Machine, shape: tuple[int, int], packing: Packing) -> None:
        self.shape, self.dtype, self.nested = shape, machine.weights_dtype, packing.double_quant
        elements = prod(shape)
        blocks = -(-elements // BLOCK)
        self.packed = kept(made(machine, "_to_copy", ((elements + 1) // 2, 1), UINT8))
        self.absmax = kept(made(machine, "_to_copy", (blocks,), UINT8 if self.nested else FLOAT32))
        self.offset = self.absmax2 = self.code2 = self.absmax
        if self.nested:
            self.absmax2 = kept(made(machine, "_to_copy", (-(-blocks // NESTED_BLOCK),), FLOAT32))
            self.code2 = kept(made(machine, "_to_copy", (256,), FLOAT32))
        self.code = kept(made(machine, "_to_copy", (16,), FLOAT32))
        words = made(machine, "_to_copy", (STATE_BYTES[self.nested] + len(str(list(shape))),), UINT8)
        if self.nested:
            self.offset = kept(made(machine, "_to_copy", (), FLOAT32))
        del words


class Linear4bit(Linear):
    """nn/modules.py, `Linear4bit`, computing in the dtype the weights came in."""

    def __init__(self, linear: Linear, compute_dtype: Dtype, state: QuantState) -> None:
        Module.__init__(self, linear.machine)
        self.inputs, self.outputs = linear.inputs, linear.outputs
        self.bias: Any = None
        self.compute_dtype = compute_dtype
        self.state = state
        self.weight = self.state.packed

    def forward(self, x: Tensor) -> Tensor:
        inp_dtype = x.dtype
        x = x.to(self.compute_dtype)
        if self.bias is not None and self.bias.dtype != x.dtype:
            change_dtype(self.bias, x.dtype)
        return matmul_4bit(x, self.state, self.bias).to(inp_dtype)

    def dequantize(self) -> Tensor:
        return self.state.dequantize()

    def copied(self) -> list[Tensor]:
        """`copy.deepcopy`: the state hangs on the layer and on its weight, and is copied twice."""
        bias = [] if self.bias is None else [self.bias]
        state = self.state.tensors()
        return [tensor.detach().clone() for tensor in (*state, self.weight, *bias, *state)]


def matmul_4bit(x: Tensor, state: QuantState, bias: Tensor | None) -> Tensor:
    """autograd/_functions.py, `MatMul4Bit`: only the packed weight is kept for the backward pass, as a view."""
    transposed = state.packed.alias(state.packed.shape, None)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        grad_output = give_away(gradients)
        return (matmul_unviewed(grad_output, state.dequantize(transposed).to(grad_output.dtype)),)

    machine = x.machine
    node = start(machine, (x,), back)
    with machine.no_grad():
        out = gemm_4bit(x, state, bias)
    return finish(node, out)


def gemm_4bit(x: Tensor, state: QuantState, bias: Tensor | None) -> Tensor:
    """backends/cuda/ops.py, `gemm_4bit`: the weight read packed, or a dequantised copy."""
    machine = x.machine
    outputs, inputs = state.shape
    if machine.graph is not None:  # to a compiler it is one operation
        shape = (*x.shape[:-1], outputs)
        return machine.graph.opaque("gemm_4bit", lambda x: gemm_4bit(x, state, bias), x, shape)
    rows = x.numel() // inputs
    if takes_fused_kernel(machine.card, x.dtype.name, rows, outputs, inputs):
        x = x.contiguous()
        flops = 2 * rows * outputs * inputs
        return machine.run("gemm_4bit", (x, state.packed), (*x.shape[:-1], outputs), x.dtype, flops)
    absmax = state.absmax
    if state.nested:
        absmax_dq = machine.run("dequantize_blockwise", (absmax,), absmax.shape, FLOAT32)
        absmax = absmax_dq + state.offset
    weight = machine.run("dequantize_4bit", (state.packed, absmax), state.shape, x.dtype)
    return unsafe_view(F.linear(x, weight, bias))


def matmul_unviewed(x: Tensor, weight: Tensor) -> Tensor:
    """torch.matmul of [..., n, k] and [k, m], whose result is no view in autograd's eyes
    (aten/src/ATen/native/LinearAlgebra.cpp, `_matmul_impl`: `_unsafe_view`)."""
    return unsafe_view(F.matmul(x, weight))


def give_away(gradients: Gradients) -> Tensor:
    """From torch 2.13 on the gradient of a function written in Python goes when the function ends, before its results
    are brought to their inputs' dtypes; earlier engines held it until then."""
    gradient: Tensor = gradients[0]
    if gradient.machine.shared_workspace:
        gradients[0] = None
    return gradient


def unsafe_view(x: Tensor) -> Tensor:
    x.is_view = False
    return x


# -------------------------------------------------------------------------------------------------------- 8 bits


class Outliers:
    """How many columns of a layer's input are held back; as the tracer counts them (packages/bitsandbytes.py)."""

    def __init__(self, initializer_range: float, gated: bool) -> None:
        self.initializer_range, self.gated = initializer_range, gated
        self.hidden = 0
        """The first layer's width; what is wider is an MLP's inner activation."""

    def columns(self, rows: int, width: int) -> int:
        if width <= self.hidden:
            return 0
        share = share_of_outlier_columns(OUTLIER_THRESHOLD, rows, self.hidden, self.initializer_range, self.gated)
        return round(width * share)


class Linear8bit(Linear):
    """nn/modules.py, `Linear8bitLt`; the weight comes from the host and is quantised row by row."""

    def __init__(self, linear: Linear, weight: Tensor, outliers: Outliers) -> None:
        Module.__init__(self, linear.machine)
        self.inputs, self.outputs, self.outliers = linear.inputs, linear.outputs, outliers
        outliers.hidden = outliers.hidden or linear.inputs
        self.bias: Any = None
        machine = linear.machine
        half = made(machine, "_to_copy", weight.shape, FLOAT16)
        scales = made(machine, "int8_vectorwise_quant", (linear.outputs,), FLOAT32)
        self.weight = kept(made(machine, "empty", weight.shape, INT8))
        del half
        self.state = {"scales": kept(scales)}
        """The scales, and the columns held back in the last forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None and self.bias.dtype != x.dtype:
            change_dtype(self.bias, x.dtype)
        return matmul_8bit(x, self)

    def dequantize(self) -> Tensor:
        return vectorwise_dequantize(self.weight, self.state["scales"])


def matmul_8bit(x: Tensor, layer: Linear8bit) -> Tensor:
    """autograd/_functions.py, `MatMul8bitLt`. The input and its columns held back hang on the node itself, not among
    its saved tensors: recomputation does not spare them, and they live until the whole graph goes."""
    machine, dtype, shape = x.machine, x.dtype, x.shape
    held: list[Any] = []

    def back(node: Node, gradients: Gradients, held: list[Any] = held) -> Sequence[Any]:
        gradient = give_away(gradients)
        grad_output = gradient.reshape(-1, layer.outputs).contiguous()
        weight = machine.run("_to_copy", (layer.weight,), layer.weight.shape, dtype)
        scales = layer.state["scales"].unsqueeze(1) * (1 / 127)
        machine.launch("mul_", (weight, scales), dtype, weight.nbytes)
        del scales
        return (F.mm(grad_output.to(dtype), weight).view(*shape),)

    node = start(machine, (x,), back)
    with machine.no_grad():
        flat = x.detach().reshape(-1, layer.inputs)
        quantized, scales, columns = vectorwise_quantize(flat.to(FLOAT16), layer.outliers)
        layer.state.pop("columns", None)
        if columns is not None:
            layer.state["columns"] = columns
        out, columns_of_x = mixed_product(flat, quantized, scales, columns, layer)
        if node is not None:
            held += [flat, columns_of_x, columns]
        return finish(node, out.reshape(*shape[:-1], layer.outputs))


def vectorwise_quantize(x: Tensor, outliers: Outliers) -> tuple[Tensor, Tensor, Tensor | None]:
    """backends/cuda/ops.py, `int8_vectorwise_quant`."""
    machine = x.machine
    rows, width = x.shape
    scales = made(machine, "int8_vectorwise_quant", (rows,), FLOAT32)
    out = made(machine, "empty", x.shape, INT8)
    beyond = x.abs().ge(0)
    machine.run("any", (beyond,), (), BOOL, args=(beyond,))
    machine.synchronize()  # `if outliers.any()`
    machine.guesses[OUTLIERS_GUESSED] = None
    columns = None
    if count := outliers.columns(rows, width):
        machine.run("any", (beyond,), (width,), BOOL, args=(beyond, 0))
        columns = made(machine, "argwhere", (count,), INT64)
    machine.launch("index_put_", (out,), INT8, 0)
    return out, scales, columns


def mixed_product(
    x: Tensor, quantized: Tensor, scales: Tensor, columns: Tensor | None, layer: Linear8bit
) -> tuple[Tensor, Tensor | None]:
    """backends/default/ops.py, `int8_mixed_scaled_mm`: 8-bit product; the columns held back in x's own dtype."""
    if columns is None:
        return scaled_product(x, quantized, scales, layer), None
    machine = x.machine
    count = columns.shape[0]
    of_x = machine.run("index", (x, columns), (x.shape[0], count), x.dtype)
    shape, of_rows = (layer.outputs, count), layer.state["scales"]
    part = vectorwise_dequantize(machine.run("index", (layer.weight, columns), shape, INT8), of_rows)
    part = part.to(x.dtype).t()
    out = scaled_product(x, quantized, scales, layer)
    return added_product(out, of_x, part), of_x


def scaled_product(x: Tensor, quantized: Tensor, scales: Tensor, layer: Linear8bit) -> Tensor:
    """backends/default/ops.py, `int8_scaled_mm`; backends/cuda/ops.py, `int8_mm_dequant`, which writes fp16."""
    machine = x.machine
    shape = (x.shape[0], layer.outputs)
    flops = 2 * x.numel() * layer.outputs
    whole = machine.run("int8_linear_matmul", (quantized, layer.weight), shape, INT32, flops)
    out = machine.run("int8_mm_dequant", (whole, scales), shape, FLOAT16)
    if layer.bias is not None and layer.bias.dtype != FLOAT16:
        machine.launch("add_", (out, layer.bias), FLOAT16, out.nbytes)
    return out.to(x.dtype)


def added_product(out: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """addmm to a whole matrix: cuBLAS adds, nothing of cublasLt's is needed. Under autocast as every product."""
    if out.machine.autocast is not None:
        b = F.cast_for_product(b)
        a = F.cast_for_product(a)
        out = F.cast_for_product(out)
    return out.machine.run("mm", (a, b, out), out.shape, out.dtype, 2 * a.numel() * b.shape[1])


def vectorwise_dequantize(weight: Tensor, scales: Tensor) -> Tensor:
    """_ops.py, `int8_vectorwise_dequant`: times the scales, times 1 / 127."""
    scaled = weight.machine.run("mul", (weight, scales), weight.shape, FLOAT32)
    return scaled * (1 / 127)
