"""What data-parallel ranks exchange, beside the passes that make and need it (megatron/core/distributed).

The last micro-batch's backward pass sums a layer's gradients over the ranks as soon as they are there
(`overlap_grad_reduce`); the first one's forward pass gathers the next layer's new weights while a layer computes
(`overlap_param_gather`). A layer is taken for a bucket; Megatron's are of 40 million weights or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor

REDUCE_STREAM, GATHER_STREAM = 5, 8


class DataExchange:
    """`gradients`: their buffer's dtype. `shares`: ranks share the optimizer, so that gradients are scattered and
    weights gathered; else each has all of it and gradients are summed where they are."""

    def __init__(
        self, machine: Machine, ranks: int, dtype: Dtype = FLOAT32, gradients: Dtype = FLOAT32, shares: bool = True
    ) -> None:
        self.machine, self.ranks, self.dtype = machine, ranks, dtype
        self.gradients, self.shares = gradients, shares
        self.gathers = self.reduces = False
        """Whether this micro-batch is a step's first, or its last."""

    def around(self, layer: Any, x: Tensor) -> Tensor:
        """The layer's input, with what is sent before the layer runs, and after its gradients are there."""
        numel = layer.trained_numel() if self.ranks > 1 and (self.gathers or self.reduces) else 0
        if numel and self.gathers and self.shares:
            self.gather(numel, layer.path)
        if not (numel and self.reduces):
            return x
        path = layer.path

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            self.reduce(numel, path)
            return gradients

        node = start(self.machine, (x,), back)
        return finish(node, x.alias(x.shape, x.strides)) if node is not None else x

    def gather(self, numel: int, path: str) -> None:
        """Of the next layer; this one's, which was asked for a layer ago, must be there."""
        machine, share = self.machine, -(-numel // self.ranks) * self.dtype.itemsize
        with machine.within(path):
            machine.wait(GATHER_STREAM)
            with machine.on_stream(GATHER_STREAM):
                machine.collective(
                    "all_gather", "data", self.ranks, self.dtype, share, share * self.ranks, -(-numel // self.ranks)
                )

    def reduce(self, numel: int, path: str) -> None:
        machine, whole = self.machine, numel * self.gradients.itemsize
        with machine.within(path), machine.on_stream(REDUCE_STREAM):
            machine.wait(0)
            if self.shares:
                machine.collective(
                    "reduce_scatter", "data", self.ranks, self.gradients, whole, whole // self.ranks, numel
                )
            else:
                machine.collective("all_reduce", "data", self.ranks, self.gradients, whole, whole, numel)

    def settle(self) -> None:
        if self.ranks > 1:
            self.machine.wait(REDUCE_STREAM)
