"""What torchtune 0.1.0 did otherwise: keys and values spread before they are turned, a loss over shifted copies of all
logits, and a loop that divides the loss by the number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.flash import BlockMask
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.stacks.torchtune import modules
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase


class CausalSelfAttention(modules.MultiHeadAttention):
    def qkv(self, x: Tensor, y: Tensor, input_pos: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        bsz, seq_len, _ = x.shape
        q = self.q_proj(x)
        k = self.k_proj(x)
        v = self.v_proj(x)
        q_per_kv = self.num_heads // self.num_kv_heads
        q = q.view(bsz, seq_len, self.num_kv_heads, q_per_kv, self.head_dim)
        k = k.view(bsz, seq_len, self.num_kv_heads, 1, self.head_dim)
        v = v.view(bsz, seq_len, self.num_kv_heads, 1, self.head_dim)
        if self.num_heads != self.num_kv_heads:
            k = k.expand(bsz, seq_len, self.num_kv_heads, q_per_kv, self.head_dim)
            v = v.expand(bsz, seq_len, self.num_kv_heads, q_per_kv, self.head_dim)
        q = q.reshape(bsz, seq_len, -1, self.head_dim)
        k = k.reshape(bsz, seq_len, -1, self.head_dim)
        v = v.reshape(bsz, seq_len, -1, self.head_dim)
        q = self.pos_embeddings(q)
        k = self.pos_embeddings(k)
        q = q.transpose(1, 2)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        return q, k, v


class FirstFeedForward(modules.FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        return self.w2(self.activation(self.w1(x)) * self.w3(x))


class TransformerDecoderLayer(modules.TransformerSelfAttentionLayer):
    def __init__(
        self,
        machine: Machine,
        attn: modules.MultiHeadAttention,
        mlp: modules.FeedForward,
        norms: Sequence[modules.RMSNorm],
    ) -> None:
        super().__init__(machine, attn, mlp, norms)
        self.children = {name: self.children[name] for name in ("sa_norm", "attn", "mlp_norm", "mlp")}

    def forward(self, x: Tensor, mask: BlockMask | None = None, input_pos: Tensor | None = None) -> Tensor:
        attn_out = self.attn(self.sa_norm(x), x)  # whose second argument it does not look at
        h = attn_out + x
        mlp_out = self.mlp(self.mlp_norm(h))
        out = h + mlp_out
        return out


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """With the classes in the middle: [batch, vocabulary, length]."""
    return F.negative_log_likelihood(logits, labels, kernel="nll_loss2d")


def train(
    model: modules.TransformerDecoder, optimizer: Optimizer, lengths: Sequence[int], batch: int, accumulated: int
) -> None:
    """recipes/lora_finetune_single_device.py, `train`."""
    machine = model.machine
    input_ids: Any
    labels: Any
    for length in machine.steps(lengths):
        for _ in range(accumulated):
            input_ids = labels = None  # they are bound to the host's first
            input_ids = machine.run("_to_copy", (), (batch, length), INT64)
            labels = machine.run("_to_copy", (), (batch, length), INT64)
            machine.phase, machine.in_forward = Phase.FORWARD, True
            logits = model(input_ids)
            logits = logits[:, : length - 1].contiguous()
            labels = labels[:, 1:length].contiguous()
            logits = logits.transpose(1, 2)
            machine.module = "loss"
            loss = cross_entropy(logits, labels)
            machine.module = ""
            loss = loss / 1.0  # the steps gradients are accumulated for
            backward(loss)
        optimizer.take_step()
        optimizer.zero_grad()
    del input_ids, labels, logits, loss  # as the next step would
    machine.end()
