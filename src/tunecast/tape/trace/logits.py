"""Which blocks are logits and loss where no model says which of its modules is the head: a plain loop's.

Logits are what a cross-entropy is taken of. From the loss (`nll_loss`) it goes back through operations that make one
number of one number (log-softmax, casts, copies, scaling) to the matrix product that made them; in the backward pass
the other way, from the loss to the product that takes their gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from tunecast.tape.kernels.blas import MATRIX_PRODUCTS
from tunecast.tape.op import Phase, Role
from tunecast.tape.trace.recorder import Operation, Recorder

LOSSES = frozenset({"aten::nll_loss_forward", "aten::nll_loss2d_forward"})
LOSS_GRADIENTS = frozenset({"aten::nll_loss_backward", "aten::nll_loss2d_backward"})
PRODUCTS = frozenset({*MATRIX_PRODUCTS, "aten::convolution", "aten::convolution_backward"})


class Logits:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made_of: dict[int, int] = {}
        """Of a block of this step: the one it was made of, number by number."""
        self._step = 0

    def watch(self) -> None:
        self._recorder.on_operation.append(self._see)

    def _see(self, operation: Operation, new: list[torch.Tensor]) -> None:
        if self._recorder.scopes.step != self._step:
            self._step = self._recorder.scopes.step
            self._made_of.clear()
        if operation.name in LOSSES:
            self._mark_back(self._recorder.block_of(operation.args[0]))
        elif new and operation.name not in PRODUCTS:
            self._follow(operation, new[0])

    def _follow(self, operation: Operation, out: torch.Tensor) -> None:
        made = self._recorder.block_of(out)
        first: Any = operation.args[0] if operation.args else None
        if made is None or not isinstance(first, torch.Tensor):
            return
        source = self._recorder.block_of(first)
        backward = self._recorder.scopes.phase is Phase.BACKWARD
        if operation.name in LOSS_GRADIENTS:
            self._set(made)
        elif source is not None and backward and out.numel() >= first.numel() > 1:
            if self._recorder.role_of(source) is Role.LOGITS_AND_LOSS:
                self._set(made)
        elif source is not None and out.numel() == first.numel():
            self._made_of[made] = source

    def _mark_back(self, block: int | None) -> None:
        while block is not None:
            self._set(block)
            block = self._made_of.pop(block, None)

    def _set(self, block: int) -> None:
        if self._recorder.role_of(block) is None:
            self._recorder.set_block_role(block, Role.LOGITS_AND_LOSS)
