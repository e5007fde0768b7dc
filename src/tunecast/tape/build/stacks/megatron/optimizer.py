"""Megatron's distributed optimizer on paper (megatron/core/optimizer/distrib_optimizer.py, distributed/*).

Gradients of all weights lie in one float32 buffer as long as the rank's part of the model. They are summed and
scattered over the data-parallel ranks (beside the last backward pass: `overlap_grad_reduce`); each rank keeps
master weights and two moments of its share, updates them in one fused kernel, and all gather the 16-bit
weights anew (beside the next forward pass: `overlap_param_gather`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.tape.build.tensor import FLOAT32, Tensor
from tunecast.tape.op import Role

DATA_STREAM = 5


class DistributedOptimizer:
    def __init__(self, parameters: Sequence[Tensor], ranks: int) -> None:
        self.parameters, self.ranks = parameters, ranks
        self.machine = machine = parameters[0].machine
        self.numel = sum(tensor.numel() for tensor in machine.repeated(parameters))
        self.share = -(-self.numel // ranks)
        machine.module = "optimizer"
        self.gradients = machine.run("zeros", (), (self.numel,), FLOAT32)
        machine.blocks[self.gradients.storage.block].role = Role.GRADIENTS
        self.master = machine.run("_to_copy", (), (self.share,), FLOAT32)
        self.state: list[Tensor] = []
        machine.blocks[self.master.storage.block].role = Role.OPTIMIZER

    def reduce_gradients(self) -> None:
        machine = self.machine
        machine.module = "optimizer"
        for parameter in self.parameters:
            parameter.grad = None
        if self.ranks > 1:
            with machine.on_stream(DATA_STREAM):
                machine.wait(0)
                sent, received = self.gradients.nbytes, self.share * FLOAT32.itemsize
                machine.collective("reduce_scatter", "data", self.ranks, FLOAT32, sent, received, self.numel)
            machine.wait(DATA_STREAM)

    def step(self, clips: bool) -> None:
        machine, share = self.machine, self.share
        machine.module = "optimizer"
        part = self.gradients.alias((share,), None)
        if not self.state:
            self.state = [machine.run("zeros_like", (), (share,), FLOAT32) for _ in range(2)]
            for tensor in self.state:
                machine.blocks[tensor.storage.block].role = Role.OPTIMIZER
        if clips:
            machine.launch("multi_tensor_l2norm", (part,), FLOAT32, FLOAT32.itemsize)
            machine.launch("multi_tensor_scale", (part,), FLOAT32, part.nbytes)
        machine.launch("multi_tensor_adam", (part, self.master, *self.state), FLOAT32, 3 * part.nbytes)
        dtype = self.parameters[0].dtype
        machine.launch("_to_copy", (self.master,), dtype, share * dtype.itemsize)
        if self.ranks > 1:
            with machine.on_stream(DATA_STREAM):
                machine.wait(0)
                sent = share * dtype.itemsize
                machine.collective("all_gather", "data", self.ranks, dtype, sent, sent * self.ranks, share)
            machine.wait(DATA_STREAM)
        machine.launch("zero_", (), FLOAT32, self.gradients.nbytes)
