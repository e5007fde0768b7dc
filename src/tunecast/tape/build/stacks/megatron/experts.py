"""Megatron Core's mixture of experts on paper (megatron/core/transformer/moe): route, permute, exchange, grouped
products, and back. Tokens are taken to spread evenly over the experts, as a balanced router sends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.stacks.megatron.linears import (
    Factor,
    MegatronRank,
    SplitLinear,
    activate,
    quantize,
    rms_norm,
)
from tunecast.tape.build.tensor import Tensor

if TYPE_CHECKING:
    from tunecast.tape.build.stacks.megatron.shape import MegatronShape


class Experts(Module):
    """`MoELayer` with grouped products (`TEGroupedMLP`) and the all-to-all dispatcher."""

    def __init__(self, machine: Machine, shape: MegatronShape, parts: MegatronRank) -> None:
        super().__init__(machine)
        self.shape, self.parts = shape, parts
        self.here = max(1, shape.experts // parts.expert)
        self.pre_mlp_layernorm = self.parameter(shape.width)
        self.router = self.parameter(shape.experts, shape.width)
        self.linear_fc1 = self.parameter(self.here, 2 * shape.expert_inner // parts.tensor, shape.width)
        self.linear_fc2 = self.parameter(self.here, shape.width, shape.expert_inner // parts.tensor)
        self.shared: Any = None
        if shape.shared_inner:
            self.shared = SharedExpert(machine, shape.width, shape.shared_inner, parts)

    def forward(self, hidden_states: Tensor) -> Tensor:
        shape, parts = self.shape, self.parts
        normed = rms_norm(hidden_states, self.pre_mlp_layernorm)
        tokens, batch, width = normed.shape
        rows = tokens * batch * shape.chosen
        scores = F.softmax(F.linear(normed, self.router), FLOAT32)
        permuted = moved(normed, (rows, width), "moe_permute")
        del scores
        dispatched = to_all(permuted, parts)
        hidden = grouped(dispatched, self.linear_fc1, parts)
        inner = activate(hidden, True, parts)
        made = grouped(inner, self.linear_fc2, parts)
        combined = moved(to_all(made, parts), (tokens, batch, width), "moe_unpermute")
        if self.shared is not None:
            combined = combined + self.shared(normed)
        return combined


class SharedExpert(Module):
    def __init__(self, machine: Machine, width: int, inner: int, parts: MegatronRank) -> None:
        super().__init__(machine)
        self.parts = parts
        self.linear_fc1 = SplitLinear(machine, width, 2 * inner, parts, split="column")
        self.linear_fc2 = SplitLinear(machine, inner, width, parts, split="row")

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(activate(self.linear_fc1(x), True, self.parts))


def moved(x: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """Rows by expert, or back by token: each read and written once."""
    machine, old, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run(name + "_bwd", gradients, old, dtype),)

    node = start(machine, (x,), back)
    return finish(node, machine.run(name, (x,), shape, x.dtype))


def to_all(x: Tensor, parts: MegatronRank) -> Tensor:
    machine = x.machine
    if parts.expert == 1:
        return x

    def send(tensor: Tensor) -> Tensor:
        out = machine.tensor(tensor.shape, tensor.dtype)
        machine.collective(
            "all_to_all", "expert", parts.expert, tensor.dtype, tensor.nbytes, tensor.nbytes, tensor.numel()
        )
        return out

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (send(gradients[0]),)

    node = start(machine, (x,), back)
    return finish(node, send(x))


def grouped(x: Tensor, weights: Tensor, parts: MegatronRank) -> Tensor:
    """A product an expert: its share of the rows times its weight."""
    machine, (experts, outputs, inputs), rows = x.machine, weights.shape, x.shape[0]
    share, plain, shape = -(-rows // experts), x.dtype, x.shape
    name = "mm" if parts.low is None else "_scaled_mm"
    dtype = parts.low or x.dtype

    def launch(m: int, n: int, k: int, written: int) -> None:
        factors = (Factor(machine, (m, k), dtype), Factor(machine, (k, n), dtype))
        for _ in range(experts):
            machine.launch(name, factors, dtype, written, 2 * m * n * k)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = quantize(gradients[0], parts.low) if parts.low is not None else gradients[0]
        launch(share, inputs, outputs, share * inputs * plain.itemsize)
        made = machine.tensor(shape, plain)
        if node.needs[1]:
            launch(outputs, inputs, share, 2 * outputs * inputs * parts.gradients.itemsize)
        del gradient
        return made, None

    given = quantize(x, parts.low) if parts.low is not None else x
    node = start(machine, (x, weights), back, (given if weights.requires_grad else None, weights))
    launch(share, outputs, inputs, share * outputs * x.dtype.itemsize)
    return finish(node, machine.tensor((rows, outputs), x.dtype))
