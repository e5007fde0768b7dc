"""Megatron's distributed optimizer on paper (megatron/core/optimizer/distrib_optimizer.py, distributed/*).

Gradients of all weights lie in one float32 buffer as long as the rank's part of the model. They are summed and
scattered over the data-parallel ranks (beside the last backward pass: `overlap_grad_reduce`); each rank keeps
master weights and two moments of its share, updates them in one fused kernel, and all gather the 16-bit
weights anew (beside the next forward pass: `overlap_param_gather`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.tape.build.stacks.megatron.data import GATHER_STREAM, REDUCE_STREAM
from tunecast.tape.build.tensor import FLOAT32, Dtype, Tensor
from tunecast.tape.op import Role


class DistributedOptimizer:
    def __init__(self, parameters: Sequence[Tensor], ranks: int, in_layers: int) -> None:
        """`in_layers` of the weights are exchanged layer by layer (`data.py`)."""
        self.parameters, self.ranks = parameters, ranks
        self.in_layers = in_layers
        self.machine = machine = parameters[0].machine
        self.numel = sum(tensor.numel() for tensor in machine.repeated(parameters))
        self.share = -(-self.numel // ranks)
        machine.module = "optimizer"
        self.gradients = machine.run("zeros", (), (self.numel,), FLOAT32)
        machine.blocks[self.gradients.storage.block].role = Role.GRADIENTS
        self.master = machine.run("_to_copy", (), (self.share,), FLOAT32)
        self.state: list[Tensor] = []
        machine.blocks[self.master.storage.block].role = Role.OPTIMIZER

    def reduce_rest(self) -> None:
        """Gradients of what is outside the layers."""
        machine = self.machine
        machine.module = "optimizer"
        for parameter in self.parameters:
            parameter.grad = None
        self._exchange("reduce_scatter", FLOAT32, REDUCE_STREAM)

    def _exchange(self, what: str, dtype: Dtype, stream: int) -> None:
        machine = self.machine
        rest = sum(p.numel() for p in self.parameters) - self.in_layers
        if self.ranks == 1 or not rest:
            return
        whole, share = rest * dtype.itemsize, -(-rest // self.ranks) * dtype.itemsize
        gathers = what == "all_gather"
        sent, received = (share, whole) if gathers else (whole, share)
        with machine.on_stream(stream):
            machine.wait(0)
            machine.collective(what, "data", self.ranks, dtype, sent, received, sent // dtype.itemsize)

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
        self._exchange("all_gather", dtype, GATHER_STREAM)
        machine.launch("zero_", (), FLOAT32, self.gradients.nbytes)
