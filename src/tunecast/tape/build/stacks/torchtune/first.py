"""What torchtune 0.1.0 did otherwise: keys and values spread before they are turned, a loss over shifted copies of all
logits, and a loop that divides the loss by the number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import ops
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.flex import BlockMask
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.stacks.torchtune.modules import (
    FeedForward,
    MultiHeadAttention,
    RMSNorm,
    TransformerDecoder,
    TransformerSelfAttentionLayer,
)
from tunecast.tape.build.tensor import INT64, Machine, Tensor
from tunecast.tape.op import Phase


class CausalSelfAttention(MultiHeadAttention):
    def forward(
        self, x: Tensor, y: Tensor | None = None, mask: BlockMask | None = None, input_pos: Tensor | None = None
    ) -> Tensor:
        bsz, seq_len, _ = x.shape
        q = self.q_proj(x)
        k = self.k_proj(x)
        v = self.v_proj(x)
        q_per_kv = self.num_heads // self.num_kv_heads
        q = ops.view(q, bsz, seq_len, self.num_kv_heads, q_per_kv, self.head_dim)
        k = ops.view(k, bsz, seq_len, self.num_kv_heads, 1, self.head_dim)
        v = ops.view(v, bsz, seq_len, self.num_kv_heads, 1, self.head_dim)
        if self.num_heads != self.num_kv_heads:
            k = ops.expand(k, bsz, seq_len, self.num_kv_heads, q_per_kv, self.head_dim)
            v = ops.expand(v, bsz, seq_len, self.num_kv_heads, q_per_kv, self.head_dim)
        q = ops.reshape(q, bsz, seq_len, -1, self.head_dim)
        k = ops.reshape(k, bsz, seq_len, -1, self.head_dim)
        v = ops.reshape(v, bsz, seq_len, -1, self.head_dim)
        q = self.pos_embeddings(q)
        k = self.pos_embeddings(k)
        q = ops.transpose(q, 1, 2)
        k = ops.transpose(k, 1, 2)
        v = ops.transpose(v, 1, 2)
        output = self.attention_call(q, k, v)
        output = ops.view(ops.contiguous(ops.transpose(output, 1, 2)), bsz, seq_len, -1)
        return self.output_proj(output)  # type: ignore[no-any-return]


class FirstFeedForward(FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        return self.w2(ops.multiply(self.activation(self.w1(x)), self.w3(x)))  # type: ignore[no-any-return]


class TransformerDecoderLayer(TransformerSelfAttentionLayer):
    def __init__(self, machine: Machine, attn: MultiHeadAttention, mlp: FeedForward, norms: Sequence[RMSNorm]) -> None:
        super().__init__(machine, attn, mlp, norms)
        self.children = {name: self.children[name] for name in ("sa_norm", "attn", "mlp_norm", "mlp")}

    def forward(self, x: Tensor, mask: BlockMask | None = None, input_pos: Tensor | None = None) -> Tensor:
        attn_out = self.attn(self.sa_norm(x))
        h = ops.add(attn_out, x)
        mlp_out = self.mlp(self.mlp_norm(h))
        out = ops.add(h, mlp_out)
        return out


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """With the classes in the middle: [batch, vocabulary, length]."""
    return ops.negative_log_likelihood(logits, labels, kernel="nll_loss2d")


def train(
    model: TransformerDecoder, optimizer: Optimizer, lengths: Sequence[int], batch: int, accumulated: int
) -> None:
    """recipes/lora_finetune_single_device.py, `train`."""
    machine = model.machine
    input_ids: Any
    labels: Any
    for step, length in enumerate(lengths):
        machine.step, machine.phase, machine.module = step, Phase.OTHER, ""
        for _ in range(accumulated):
            input_ids = labels = None  # they are bound to the host's first
            input_ids = machine.run("_to_copy", (), (batch, length), INT64)
            labels = machine.run("_to_copy", (), (batch, length), INT64)
            machine.phase, machine.in_forward = Phase.FORWARD, True
            logits = model(input_ids)
            logits = ops.contiguous(ops.slice_(logits, 1, 0, length - 1))
            labels = ops.contiguous(ops.slice_(labels, 1, 1, length))
            logits = ops.transpose(logits, 1, 2)
            machine.module = "loss"
            loss = cross_entropy(logits, labels)
            machine.module = ""
            loss = ops.scale(loss, "div")
            backward(loss)
        machine.phase = Phase.OPTIMIZER
        optimizer.step()
        machine.phase, machine.module = Phase.OTHER, ""
        optimizer.zero_grad()
    machine.step = len(lengths)
    del input_ids, labels, logits, loss  # as the next step would
    machine.end()
