"""What torchtune does otherwise after 0.6.1, its last release: the repository's main branch, which calls itself 0.7.0.

Norms are written out again as in 0.4.0. The head is no longer called by the model but by the loss, which leaves out
tokens that are not trained on, and labels are shifted where rows are collated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.compiled import Region
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.stacks.torchtune.modules import OUTPUT_CHUNKS, CrossEntropy
from tunecast.tape.build.tensor import Tensor

ALL_TRAINED = "every token is trained on; torchtune's loss leaves out those that are not, and their logits"


class LinearCrossEntropyLoss(CrossEntropy):
    """modules/loss/cross_entropy_loss.py: logits of a chunk of tokens at a time. A row's last token has no label."""

    def __init__(self, machine: Machine, linear_projection: Module) -> None:
        super().__init__(machine)
        self.projection = (linear_projection,)  # not a child: it is the model's

    def compile(self) -> None:
        self.region = Region(self.machine, self.compute_cross_entropy)

    def compute_cross_entropy(self, hidden_chunk: Tensor, target_chunk: Tensor) -> Tensor:
        logits = self.projection[0](hidden_chunk)
        return F.cross_entropy(logits.float(), target_chunk)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        machine, (rows, length) = self.machine, targets.shape
        machine.assumptions[ALL_TRAINED] = None
        compute_cross_entropy = self.region or self.compute_cross_entropy
        valid = rows * (length - 1)
        self.places(targets, valid)
        targets = targets.reshape(-1)
        outputs = outputs.reshape(-1, outputs.shape[-1])
        indices = self.places(targets, valid)
        outputs = rows_selected(outputs, indices)
        targets = machine.run("index_select", (targets, indices), (valid,), INT64)
        del indices
        hidden_chunks, target_chunks = tensor_split(outputs, OUTPUT_CHUNKS), tensor_split(targets, OUTPUT_CHUNKS)
        total_loss = machine.run("_to_copy", (), (), FLOAT32)
        for hidden_chunk, target_chunk in zip(hidden_chunks, target_chunks, strict=True):
            loss = compute_cross_entropy(hidden_chunk, target_chunk)
            total_loss = total_loss.add_(loss)
        return total_loss / 1.0

    def places(self, targets: Tensor, valid: int) -> Tensor:
        """`torch.where(targets != ignore_index)[0]`."""
        flags = targets.ne(self.ignore_index)
        return self.machine.run("nonzero", (flags,), (valid, flags.dim()), INT64, args=(flags,))


def rows_selected(x: Tensor, places: Tensor) -> Tensor:
    """`index_select` of rows; gradients are added into zeros."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), shape, dtype)
        args = (zeros, 0, node.take(0), gradients[0])
        return (machine.run("index_add", (zeros, args[2], gradients[0]), shape, dtype, args=args),)

    node = start(machine, (x,), back, (places,))
    return finish(node, machine.run("index_select", (x, places), (places.shape[0], *shape[1:]), dtype))


def tensor_split(x: Tensor, count: int) -> list[Tensor]:
    """Slices of the first dimension, of which the first few may be one longer."""
    size, more = divmod(x.shape[0], count)
    parts, start_at = [], 0
    for number in range(count):
        end = start_at + size + (1 if number < more else 0)
        parts.append(narrow(x, 0, start_at, end))
        start_at = end
    return parts
