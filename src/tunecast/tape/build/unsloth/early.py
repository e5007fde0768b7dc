"""What Unsloth did otherwise up to 2024.9 (2024.8 and 2024.9: unsloth/models/llama.py, kernels/cross_entropy_loss.py).

Every layer has rotary tables of its own (`LlamaRotaryEmbedding`, a part of transformers' attention until 4.48). Logits
are made all at once in the weights' dtype, and their gradient is written over them (`CausalLM_fast_forward`,
`Fast_CrossEntropyLoss`); the model returns them, so that accelerate copies them to float32
(accelerate/utils/operations.py, `convert_outputs_to_fp32`). No layer is compiled as one region.

Taken as in 2026.10.9: how inputs of layers wait on the host, and the products of adapters.
Not traced: those releases need a transformers that is not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.job.releases import numbers
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor

LAST = (2024, 9)


def is_early(release: str) -> bool:
    return numbers(release)[: len(LAST)] <= LAST


class WholeLoss:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __call__(self, hidden_states: Tensor, head: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(hidden_states, head)
        shifted = self.machine.run("hstack", (labels,), labels.shape, INT64)
        loss = row_losses(logits, shifted)
        self.machine.run("_to_copy", (logits,), logits.shape, FLOAT32)
        return loss


def row_losses(logits: Tensor, labels: Tensor) -> Tensor:
    machine, rows = logits.machine, logits.numel() // logits.shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = node.take(0)
        machine.launch("_cross_entropy_backward", (kept,), kept.dtype, kept.nbytes)
        return (kept,)

    node = start(machine, (logits,), back)
    machine.launch("_cross_entropy_forward", (logits, labels), FLOAT32, 2 * rows * FLOAT32.itemsize)
    return finish(node, machine.tensor((), FLOAT32), logits, machine.tensor((rows,), FLOAT32))


def layer_tables(model: Any, rows: int) -> list[Tensor]:
    """Cosines and sines of each layer."""
    machine: Machine = model.machine
    size = (rows, model.model.rotary_emb.width)
    tables = []
    for layer in model.layers():
        with machine.within(layer.path):
            tables += [machine.run("_to_copy", (), size, machine.weights_dtype) for _ in range(2)]
    return tables
