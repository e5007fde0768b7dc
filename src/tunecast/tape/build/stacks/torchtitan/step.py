"""torchtitan 0.3's step on paper (torchtitan/trainer.py, `Trainer.train_step`, `_forward_backward_body`;
torchtitan/components/loss.py, `ChunkedLossWrapper`, `GradAccumulator`).

The loss is taken of an eighth of each row at a time: the head's product, its loss and their gradients, before the next;
the head's gradients are summed, and reduced with the last. What comes back is a gradient of the decoder's result, in
fp32, with which the decoder's backward pass begins.

From its second step on, torchtitan replays a CUDA graph of both passes (torchtitan/distributed/cudagraph.py), which
needs gradients to stay where they are. On paper every step runs as the first, and gradients stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build.autograd import Gradients, Node, backward, finish, start
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.stacks.torchtitan.decoder import document_mask
from tunecast.tape.build.stacks.torchtitan.loop import Trainer
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase

CHUNKS = 8
"""`num_chunks`."""


class ChunkedTrainer(Trainer):
    """Names that outlive a function here do so there."""

    def train(self, lengths: Sequence[int]) -> None:
        machine = self.machine
        uneven = [length for length in lengths if length % CHUNKS]
        if uneven:
            told = f"torchtitan takes the loss of a row in {CHUNKS} equal parts; got {uneven[0]}"
            raise UsageError.at("seq_len", f"{told}. To fix: a multiple of {CHUNKS}")
        for length in machine.steps(lengths):
            self.train_step(length)
        self.zero_grad()
        self.scheme.end()
        machine.end()

    def zero_grad(self) -> None:
        """`zero_grad(set_to_none=False)`."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                self.machine.launch("zero_", (parameter.grad,), parameter.dtype, parameter.grad.nbytes)

    def train_step(self, length: int) -> None:
        machine, job = self.machine, self.job
        self.zero_grad()
        global_valid_tokens = machine.run("_to_copy", (), (), INT64)
        microbatch_groups: list[tuple[Tensor, Tensor]] = []
        for number in range(job.grad_accum):
            machine.take_turn(number)
            rows = (job.micro_batch, length)
            inputs, positions, labels = [machine.run("_to_copy", (), rows, INT64) for _ in range(3)]
            microbatch_groups.append((inputs, positions))
            loss = self.run_both_passes(inputs, positions, labels, global_valid_tokens)
        grad_norm = self.scheme.clip(self.parameters) if job.max_grad_norm else None
        self.optimizer.take_step()
        del loss, grad_norm

    def run_both_passes(self, inputs: Tensor, positions: Tensor, labels: Tensor, tokens: Tensor) -> Tensor:
        """`forward_backward_step`."""
        attention_masks = document_mask(positions)
        return self.forward_backward_body(inputs, positions, labels, tokens, attention_masks)

    def forward_backward_body(
        self, inputs: Tensor, positions: Tensor, labels: Tensor, global_valid_tokens: Tensor, attention_masks: Any
    ) -> Tensor:
        self.machine.phase, self.machine.in_forward = Phase.FORWARD, True
        pred = self.model(inputs, attention_masks, positions)
        with self.machine.within("loss"):
            loss = self.chunked_loss(pred, labels, global_valid_tokens, positions)
        del pred
        backward(loss)
        return loss

    def chunked_loss(self, hidden_states: Tensor, labels: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        machine, lm_head = self.machine, self.model.output
        h_chunks = [detached(chunk) for chunk in chunks_of(hidden_states)]
        label_chunks = chunks_of(labels)
        input_chunks = chunks_of(positions)
        buffer = machine.run("zeros_like", (), hidden_states.shape, FLOAT32)
        total_loss = machine.run("new_zeros", (), (), FLOAT32)
        sharder = self.scheme.sharder  # type: ignore[attr-defined]
        unit = next(unit for unit in sharder.units if lm_head in unit.modules)
        unit.reshards = unit.reshards_after_backward = sharder.reduces = False
        unit.unshard()
        unit.wait_for_unshard()
        for place, (h_chunk, label_chunk) in enumerate(zip(h_chunks, label_chunks, strict=True)):
            sharder.reduces = place == len(h_chunks) - 1
            machine.phase, machine.in_forward = Phase.FORWARD, True
            logits = lm_head(h_chunk)
            chunk_loss = divided(self.loss_fn(logits, label_chunk), tokens)
            total_loss = machine.run("add", (total_loss, chunk_loss), (), FLOAT32)
            backward(chunk_loss)
            add_to(buffer, h_chunk)
        unit.reshards = unit.reshards_after_backward = True  # whatever it was before
        unit.reshard()
        accumulated_grad = buffer.to(hidden_states.dtype)
        del input_chunks
        return with_gradient(hidden_states, accumulated_grad, total_loss)


def chunks_of(x: Tensor) -> list[Tensor]:
    """Along the sequence; of several rows copies, of one what lies there, whose first stride is nobody's concern."""
    size = x.shape[1] // CHUNKS
    parts = [chunk.contiguous() for chunk in x.detach().split([size] * CHUNKS, 1)]
    return [part.alias(part.shape, None) for part in parts]


def detached(chunk: Tensor) -> Tensor:
    leaf = chunk.detach()
    leaf.requires_grad = True
    return leaf


def divided(loss: Tensor, tokens: Tensor) -> Tensor:
    """loss / global_valid_tokens."""
    machine = loss.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("div", (gradients[0], tokens), (), FLOAT32),)

    return finish(start(machine, (loss,), back), machine.run("div", (loss, tokens), (), FLOAT32))


def add_to(buffer: Tensor, h_chunk: Tensor) -> None:
    """`GradAccumulator.add`."""
    assert h_chunk.grad is not None
    chunk_grad = h_chunk.grad.to(buffer.dtype)
    buffer.machine.launch("copy_", (chunk_grad,), buffer.dtype, chunk_grad.nbytes)
    h_chunk.grad = None


def with_gradient(hidden_states: Tensor, accumulated_grad: Tensor, loss: Tensor) -> Tensor:
    """`_DecoderOutputGradientBackProp`."""

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (node.take(0),)

    node = start(loss.machine, (hidden_states,), back)
    return finish(node, loss.detach(), accumulated_grad)
