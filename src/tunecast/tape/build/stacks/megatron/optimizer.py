"""What data-parallel ranks exchange, beside the passes that make and need it (megatron/core/distributed).

The last micro-batch's backward pass sums a layer's gradients over the ranks as soon as they are there
(`overlap_grad_reduce`); the first one's forward pass gathers the next layer's new weights while a layer computes
(`overlap_param_gather`). A layer is taken for a bucket; Megatron's are of 40 million weights or more.

Megatron's optimizer on paper (megatron/core/optimizer/distrib_optimizer.py, optimizer.py, distributed/*).

Gradients of all weights lie in one buffer as long as the rank's part of the model, in float32 or in the weights' dtype
(`grad_reduce_in_fp32`). Sharing (`--use-distributed-optimizer`), they are summed and scattered over the data-parallel
ranks (beside the last backward pass: `overlap_grad_reduce`); each rank keeps master weights and two moments of its
share, updates them in one fused kernel, and all gather the 16-bit weights anew (beside the next forward pass:
`overlap_param_gather`). Else every rank has masters and moments of all. Weights in float32 are their own masters.

What a rank updates it copies to float32 first, where the buffer is not; the copies go when the next step begins. An
optimizer that is aware of precisions (`use_precision_aware_optimizer`) reads the buffer as it is, and of its masters
keeps the 16 bits that the weights have not (`store_param_remainders`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, INT16, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.stacks.megatron.linears import Factor
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

# ------------------------------------------------------------------------------------ what data-parallel ranks exchange


REDUCE_STREAM, GATHER_STREAM = 5, 8
MODULE = "optimizer"
MOMENTS = 2


class DataExchange:
    """`gradients`: their buffer's dtype. `shares`: ranks share the optimizer, so that gradients are scattered and
    weights gathered; else each has all of it and gradients are summed where they are."""

    def __init__(
        self, machine: Machine, ranks: int, dtype: Dtype = FLOAT32, gradients: Dtype = FLOAT32, shares: bool = True,
        expert_ranks: int = 1,
    ) -> None:  # fmt: skip
        """`ranks` have the same weights, `expert_ranks` the same experts."""
        self.machine, self.groups, self.dtype = machine, ((False, ranks), (True, expert_ranks)), dtype
        self.gradients, self.shares = gradients, shares
        self.gathers = self.reduces = False
        """Whether this micro-batch is a step's first, or its last."""

    def around(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's input, with what is sent before the layer runs, and after its gradients are there."""
        if not (self.gathers or self.reduces):
            return x
        sent = [(layer.trained_numel(of_experts), ranks) for of_experts, ranks in self.groups if ranks > 1]
        sent = [(numel, ranks) for numel, ranks in sent if numel]
        if self.gathers and self.shares:
            for numel, ranks in sent:
                self.gather(numel, ranks, layer.path)
        if not (sent and self.reduces):
            return x
        path = layer.path

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            for numel, ranks in sent:
                self.reduce(numel, ranks, path)
            return gradients

        node = start(self.machine, (x,), back)
        return finish(node, x.alias(x.shape, x.strides)) if node is not None else x

    def gather(self, numel: int, ranks: int, path: str) -> None:
        """Of the next layer; this one's, which was asked for a layer ago, must be there."""
        machine = self.machine
        with machine.within(path):
            machine.wait(GATHER_STREAM)
            with machine.on_stream(GATHER_STREAM):
                machine.collective_of("all_gather", "data", ranks, self.dtype, -(-numel // ranks))

    def reduce(self, numel: int, ranks: int, path: str) -> None:
        machine = self.machine
        with machine.within(path), machine.on_stream(REDUCE_STREAM):
            machine.wait(0)
            what = "reduce_scatter" if self.shares else "all_reduce"
            machine.collective_of(what, "data", ranks, self.gradients, numel)

    def settle(self) -> None:
        if max(ranks for _, ranks in self.groups) > 1:
            self.machine.wait(REDUCE_STREAM)


# -------------------------------------------------------------------------------------------------------- the optimizer


PARAMETER_ALIGNMENT, BUCKET_ALIGNMENT = 64, 128
"""Numbers that a weight begins at a multiple of, and a bucket ends at one of, where ranks share the optimizer
(distributed/param_and_grad_buffer.py, `_pad_start_of_param_if_needed`, `_pad_end_of_bucket_if_needed`)."""


class MegatronOptimizer:
    def __init__(
        self, parameters: Sequence[Tensor], ranks: int, in_layers: int, gradients: Dtype = FLOAT32, shares: bool = True,
        expert_ranks: int = 1, aware: bool = False, remainders: bool = False, moments: Dtype = FLOAT32,
    ) -> None:  # fmt: skip
        """`in_layers` of the weights are exchanged layer by layer (`DataExchange`). `ranks` have the same weights,
        `expert_ranks` the same experts. `aware` of precisions: see above; `remainders` of masters alone are kept."""
        self.parameters, self.ranks, self.shares, self.dtype = parameters, ranks, shares, gradients
        self.in_layers, self.aware, self.moments = in_layers, aware, moments
        self.machine = machine = parameters[0].machine
        every = machine.repeated(parameters)
        split = padded([tensor.numel() for tensor in every if is_experts(tensor)], expert_ranks, shares)
        whole = padded([tensor.numel() for tensor in every if not is_experts(tensor)], ranks, shares)
        self.numel = whole + split
        self.share = whole // ranks + split // expert_ranks if shares else self.numel
        machine.module = MODULE
        moved = self.move_weights() if shares else None
        self.gradients = machine.run("zeros", (), (self.numel,), gradients).as_role(Role.GRADIENTS)
        del moved
        self.state: list[Tensor] = []
        self.copies: list[Tensor] = []
        self.masters: list[Tensor] = []
        if parameters[0].dtype is not FLOAT32 or shares:
            self.masters = [self.master(*piece, INT16 if remainders else FLOAT32) for piece in self.pieces()]

    def move_weights(self) -> Tensor:
        """Into a buffer of their own, before that of the gradients is made; until both are there the weights are there
        twice. Here the copy is what goes."""
        dtype = self.parameters[0].dtype
        return self.machine.run("zeros", (), (self.numel,), dtype).as_role(Role.WEIGHTS)

    def pieces(self) -> list[tuple[str, int]]:
        """Whose, and how many numbers, each of the optimizer's tensors is: a weight's, matrices before rows, which do
        not decay (optimizer/__init__.py, `_get_param_groups`). A rank's share is one piece; in Megatron one for each
        weight that it has a part of."""
        if self.shares:
            return [(MODULE, self.share)]
        ordered = sorted(self.parameters, key=lambda parameter: parameter.dim() == 1)
        return [(parameter.block.module, parameter.numel()) for parameter in ordered]

    def master(self, module: str, numel: int, dtype: Dtype) -> Tensor:
        """`shard_model_param.clone().float()`."""
        machine = self.machine
        with machine.within(module):
            copy = machine.run("clone", (), (numel,), self.parameters[0].dtype)
            return machine.run("_to_copy", (copy,), (numel,), dtype).as_role(Role.OPTIMIZER)

    def begin_step(self) -> None:
        self.copies = []

    def reduce_rest(self) -> None:
        """Gradients of what is outside the layers."""
        machine = self.machine
        machine.module = MODULE
        self._exchange("reduce_scatter" if self.shares else "all_reduce", self.dtype, REDUCE_STREAM)

    def _exchange(self, what: str, dtype: Dtype, stream: int) -> None:
        machine = self.machine
        rest = sum(p.numel() for p in self.parameters) - self.in_layers
        if self.ranks == 1 or not rest:
            return
        whole, share = rest * dtype.itemsize, -(-rest // self.ranks) * dtype.itemsize
        sent, received = {"all_gather": (share, whole), "reduce_scatter": (whole, share)}.get(what, (whole, whole))
        with machine.on_stream(stream):
            machine.wait(0)
            machine.collective(what, "data", self.ranks, dtype, sent, received, sent // dtype.itemsize)

    def step(self, clips: bool) -> None:
        machine, share = self.machine, self.share
        machine.module = MODULE
        part = Factor(machine, (share,), FLOAT32 if not self.aware else self.dtype)
        if self.dtype is not FLOAT32 and not self.aware:
            self.copies = [self.made("_to_copy", *piece, FLOAT32, Role.GRADIENTS) for piece in self.pieces()]
        if clips:
            machine.launch("multi_tensor_l2norm", (part,), FLOAT32, FLOAT32.itemsize)
            machine.launch("multi_tensor_scale", (part,), FLOAT32, part.nbytes)
        if not self.state:
            for piece in self.pieces():
                self.state += [self.made("empty_like", *piece, self.moments, Role.OPTIMIZER) for _ in range(MOMENTS)]
        held = [part, *[Factor(machine, (share,), self.moments)] * MOMENTS]
        if self.masters:
            held.insert(1, Factor(machine, (share,), self.masters[0].dtype))
        machine.launch("multi_tensor_adam", held, FLOAT32, sum(tensor.nbytes for tensor in held[1:]))
        dtype = self.parameters[0].dtype
        if self.masters:
            machine.launch("_to_copy", held[1:2], dtype, share * dtype.itemsize)
        if self.shares:
            self._exchange("all_gather", dtype, GATHER_STREAM)
        machine.launch("zero_", (), self.dtype, self.gradients.nbytes)

    def made(self, name: str, module: str, numel: int, dtype: Dtype, role: Role) -> Tensor:
        with self.machine.within(module):
            return self.machine.run(name, (), (numel,), dtype).as_role(role)


def is_experts(weight: Tensor) -> bool:
    """Experts' weights are stacked."""
    return weight.dim() == 3


def padded(sizes: Sequence[int], ranks: int, shares: bool) -> int:
    """Numbers in a buffer of weights so large."""
    if not shares:
        return sum(sizes)
    end = lcm(ranks, BUCKET_ALIGNMENT)
    numel = sum(-(-size // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT for size in sizes)
    return -(-numel // end) * end
