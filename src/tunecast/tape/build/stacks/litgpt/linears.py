"""litgpt's linear layers on paper: plain, quantised by Fabric, and with adapters (litgpt/lora.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT16, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Dropout, Linear, Module
from tunecast.tape.build.quantized import QuantState, give_away, kept, made, matmul_unviewed
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role


class LitLora(NamedTuple):
    """litgpt's `lora_*` options."""

    r: int
    dropout: float
    query: bool
    key: bool
    value: bool
    projection: bool
    mlp: bool
    head: bool


class LitLinear(Linear):
    """A bias is added by itself where the input's rows do not follow each other (aten/src/ATen/native/Linear.cpp)."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None or x.dim() == 2 or x.is_contiguous():
        return F.linear(x, weight, bias)
    return F.linear(x, weight).add_(F.cast_for_product(bias))


class FourBitLinear(LitLinear):
    """lightning/fabric/plugins/precision/bitsandbytes.py, `_Linear4bit`: weights are quantised from fp16, so that is
    what they are dequantised to, before they are brought to the dtype they are computed in."""

    def __init__(self, linear: Linear, nested: bool, tables: list[Tensor], keeps_input: bool) -> None:
        Module.__init__(self, linear.machine)
        machine = self.machine
        self.inputs, self.outputs, self.keeps_input = linear.inputs, linear.outputs, keeps_input
        weight = made(machine, "empty", linear.weight.shape, machine.weights_dtype)
        w = made(machine, "_to_copy", linear.weight.shape, FLOAT16)
        self.state = QuantState(w, nested, tables)
        del weight, w
        self.weight = self.state.packed
        self.bias: Any = None
        if linear.bias is not None:
            self.bias = kept(made(machine, "empty", (self.outputs,), machine.weights_dtype))

    def forward(self, x: Tensor) -> Tensor:
        return matmul_4bit(x, self.state, self.bias, self.keeps_input)


def matmul_4bit(A: Tensor, state: QuantState, bias: Tensor | None, keeps_input: bool) -> Tensor:
    """bitsandbytes before 0.50, autograd/_functions.py, `MatMul4Bit`. Up to 0.42 `ctx.tensors = (A, B)`: an attribute,
    no saved tensor, so the input lives until the whole graph goes."""
    held: list[Tensor] = []

    def back(node: Node, gradients: Gradients, held: list[Tensor] = held) -> Sequence[Any]:
        grad_output = give_away(gradients)
        return (matmul_unviewed(grad_output, state.dequantize().to(grad_output.dtype)),)

    machine = A.machine
    node = start(machine, (A,), back)
    with machine.no_grad():
        out = linear(A, state.dequantize().to(A.dtype), bias)
        out.is_view = False
    if node is not None and keeps_input:
        held.append(A)
    return finish(node, out)


class LoRALinear(Module):
    """`LoRALinear.forward`; without a rank only the layer."""

    scaling = 1.0

    def __init__(self, machine: Machine, inputs: int, outputs: int, bias: bool, r: int, dropout: float) -> None:
        super().__init__(machine)
        self.linear: Linear = LitLinear(machine, inputs, outputs, bias)
        self.r = r
        if r:
            self.lora_dropout = Dropout(machine, dropout)
            self.lora_A = self.parameter(r, inputs)
            self.lora_B = self.parameter(outputs, r)

    def forward(self, x: Tensor) -> Tensor:
        pretrained: Tensor = self.linear(x)
        if not self.r:
            return pretrained
        dropped = self.lora_dropout(x)
        after_A = F.matmul(dropped, self.lora_A.t())
        del dropped
        after_B = F.matmul(after_A, self.lora_B.t())
        del after_A
        lora = after_B * self.scaling
        del after_B
        return pretrained + lora


class LoRAQKVLinear(Module):
    """One layer for queries, keys and values; the parts of an adapter side by side, or zeros where there is none."""

    scaling = 1.0

    def __init__(
        self,
        machine: Machine,
        inputs: int,
        sizes: tuple[int, int, int],
        bias: bool,
        lora: LitLora,
        copies_indices: bool,
    ) -> None:
        super().__init__(machine)
        self.linear: Linear = LitLinear(machine, inputs, sum(sizes), bias)
        enabled = (lora.query, lora.key, lora.value)
        self.qkv_shapes = [size for size, on in zip(sizes, enabled, strict=True) if on]
        self.parts, self.all_enabled, self.copies_indices = len(self.qkv_shapes), all(enabled), copies_indices
        self.grouped = sizes[0] != sizes[1]
        self.indices: list[Tensor] = []
        if self.parts:
            self.lora_dropout = Dropout(machine, lora.dropout)
            self.lora_A = self.parameter(lora.r * self.parts, inputs)
            self.lora_B = self.parameter(sum(self.qkv_shapes), lora.r)

    def forward(self, x: Tensor) -> Tensor:
        pretrained: Tensor = self.linear(x)
        if not self.parts:
            return pretrained
        dropped = self.lora_dropout(x)  # named, so that it outlives autocast's copy of it
        after_A = F.linear(dropped, self.lora_A)
        del dropped
        after_B = self.conv1d(after_A.transpose(-2, -1), self.lora_B.unsqueeze(-1)).transpose(-2, -1)
        lora = self.zero_pad(after_B) * self.scaling
        return pretrained + lora

    def conv1d(self, input: Tensor, weight: Tensor) -> Tensor:
        if not self.grouped:
            return F.conv1d(input, weight, groups=self.parts)
        input_splitted = input.chunk(self.parts, 1)
        weight_splitted = weight.split(self.qkv_shapes, 0)
        return F.cat([F.conv1d(a, b) for a, b in zip(input_splitted, weight_splitted, strict=True)], 1)

    def zero_pad(self, x: Tensor) -> Tensor:
        if self.all_enabled:
            return x
        result = self.machine.run("new_zeros", (), (*x.shape[:-1], self.linear.outputs), x.dtype)
        return index_copy(result, self.lora_ind(), x)

    def lora_ind(self) -> Tensor:
        """A buffer made the first time it is needed."""
        if not self.indices:
            size = (sum(self.qkv_shapes),)
            self.indices = [self.machine.run("_to_copy", (), size, INT64).as_role(Role.WEIGHTS)]
        return self.indices[0].clone() if self.copies_indices else self.indices[0]


def index_copy(result: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """result.index_copy_(-1, index, source): the gradient takes the columns out again; the source is saved for its
    shape (tools/autograd/derivatives.yaml)."""
    machine, shape = result.machine, source.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        node.take(1)
        return (machine.run("index_select", (gradients[0], node.take(0)), shape, gradients[0].dtype),)

    node = start(machine, (source,), back, (index, source))
    machine.launch("index_copy_", (result, index, source), result.dtype, source.nbytes)
    return finish(node, result)
